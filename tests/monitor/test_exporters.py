"""Metrics out: scraped over HTTP, read back from event files and from MLflow's store, each with its own library."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.local.toolkit_run import DEADLINE_S, ROOT, ToolkitRun
from toolkit.job.exports import Exports, ExportsConfig
from toolkit.metrics.file import SampleFile
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.process import Process

MISSING = [name for name in ("prometheus_client", "tensorboardX", "tensorboard", "mlflow") if find_spec(name) is None]
with_clients = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
METRICS = ("--metric", r"loss=loss=([0-9.]+)", "--metric", r"step=step=(\d+)")
SCRIPT = """
import pathlib, time

print("step=10 loss=0.5", flush=True)
print("step=20 loss=0.25", flush=True)
while not pathlib.Path({end!r}).exists():
    time.sleep(0.05)
print("step=30 loss=0.125", flush=True)
"""


def script(folder: Path) -> str:
    """Write a script that prints three losses, the last one once the file `end` exists; return its path."""
    (folder / "train.py").write_text(SCRIPT.format(end=str(folder / "end")))
    return str(folder / "train.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.1)


def scraped(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


@with_clients
@pytest.mark.filterwarnings("ignore")  # The libraries' own.
def test_metrics_go_to_prometheus_tensorboard_and_mlflow_while_the_job_runs(tmp_path: Path) -> None:
    port, store = free_port(), tmp_path / "mlruns"
    environ = {
        "TOOLKIT_PROMETHEUS_PORT": str(port),
        "TOOLKIT_MONITOR": "1",
        "TOOLKIT_PROMETHEUS_ADDRESS": "127.0.0.1",
        "TOOLKIT_TENSORBOARD": "events",
        "TOOLKIT_MLFLOW_TRACKING_URI": store.as_uri(),
        "TOOLKIT_MLFLOW_EXPERIMENT": "digits",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    with ToolkitRun(tmp_path, script(tmp_path), "--name", "it", *METRICS, **environ) as job:
        newest = 'toolkit_metric{host="algo-1",name="loss",rank="0"} 0.25'
        until(lambda: newest in scraped(port), newest)
        until(lambda: 'toolkit_system{host="algo-1",kind="memory",' in scraped(port), "the monitor's samples")
        until(lambda: any(store.rglob("metrics/loss")), "MLflow's run")
        until(lambda: any(job.folder.rglob("events/algo-1-rank-0/*")), "TensorBoard's event file")
        (tmp_path / "end").touch()
        assert job.end() == 0, job.console

    assert job.told["metrics"]["loss"] == 0.125
    losses = [(10, 0.5), (20, 0.25), (30, 0.125)]
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(job.folder / "hosts/algo-1/opt/ml/output/events/algo-1-rank-0"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == losses
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("it", "FINISHED")
    assert [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")] == losses


@with_clients
def test_what_the_other_side_refuses_costs_a_line_and_never_the_job(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ = {
            "TOOLKIT_PROMETHEUS_PORT": str(taken.getsockname()[1]),
            "TOOLKIT_TENSORBOARD": str(tmp_path / "train.py/no-folder"),
            "TOOLKIT_MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        }
        with ToolkitRun(tmp_path, script(tmp_path), *METRICS, **environ) as job:
            for _ in range(3):
                job.until("no metrics go there")
            (tmp_path / "end").touch()
            assert job.end() == 0, job.console

    assert "exports: prometheus: OSError: " in job.console
    assert "exports: tensorboard: NotADirectoryError: " in job.console
    assert "exports: mlflow: MlflowException: " in job.console


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("prometheus", "prometheus_client", "prometheus-client"),
        ("tensorboard", "tensorboardX", "tensorboardX"),
        ("mlflow", "mlflow", "mlflow-skinny"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, name: str, module: str, package: str
) -> None:
    exports = {"prometheus_port": 1, "tensorboard": str(tmp_path), "mlflow_uri": "file:/x"}
    given = {"exports": exports, "job": "it", "host": "algo-1", "attempt": 1, "metrics": str(tmp_path / "none")}
    (tmp_path / "config.json").write_text(json.dumps(given))
    program = (
        f"import sys; sys.modules[{module!r}] = None; from toolkit.monitor.exporters.process import main; "
        f"sys.exit(main(['', {str(tmp_path / 'config.json')!r}, {name!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0
    assert f"exports: {name}: needs the package {package}, which cannot be imported" in done.stderr
    assert f"pip install 'container-training-toolkit[{name}]'; no metrics go there" in done.stderr


class Refuses:
    """An exporter whose other side refuses everything after the first value."""

    def __init__(self) -> None:
        self.got: list[float] = []
        self.closed = False

    def samples(self, new: Sequence[Sample]) -> None:
        if self.got:
            raise ConnectionError("refused")
        self.got += [each.value for each in new]

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        raise ConnectionError("refused")

    def close(self) -> None:
        self.closed = True


def test_an_exporter_ends_after_three_failures_in_a_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, latest = tmp_path / "metrics.jsonl", tmp_path / "latest.json"
    written = SampleFile(path, warn=print)
    written.append([Sample(name="loss", value=value, time_s=1, host="h") for value in (1.0, 2.0)])
    first_bytes = path.stat().st_size // 2
    latest.write_text('{"time_s": 5.0, "values": {"cpu/all/used_percent": null}}')
    config = ExportsConfig(
        exports=Exports(), job="it", host="h", attempt=2, metrics=path, latest=latest, skip_bytes=first_bytes
    )
    refuses = Refuses()
    read_end, write_end = os.pipe()

    def more() -> None:
        written.append([Sample(name="loss", value=3.0, time_s=1, host="h")])

    process = Process(config, refuses, "it")
    for _ in range(3):
        process._look()
        more()
    process.run(read_end)  # Ends by itself, without SIGTERM.

    os.close(read_end)
    os.close(write_end)
    written.close()
    assert refuses.got == [2.0]  # Not the first one: it is an earlier attempt's.
    assert refuses.closed
    assert capfd.readouterr().err == (
        "exports: it: ConnectionError: refused; after 3 failures no more metrics go there\n"
    )
