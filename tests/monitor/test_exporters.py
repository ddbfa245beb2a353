"""Metrics out: scraped over HTTP, read back from event files and from MLflow's store, each with its own library."""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import DEADLINE_S, ROOT, ToolkitRun
from toolkit.job.exports import Exports, ExportsConfig
from toolkit.metrics.file import SampleFile
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters.exporter import Names
from toolkit.monitor.exporters.exporter_process import EXPORTERS, ExporterProcess
from toolkit.monitor.exporters.mlflow import MLflow
from toolkit.records import encode

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
        f"import sys; sys.modules[{module!r}] = None; from toolkit.monitor.exporters.exporter_process import main; "
        f"sys.exit(main(['', {str(tmp_path / 'config.json')!r}, {name!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0
    assert f"exports: {name}: needs the package {package}, which cannot be imported" in done.stderr
    assert f"pip install 'container-training-toolkit[{name}]'; no metrics go there" in done.stderr


# Names that one place or another refuses or changes, and the names that they would be changed to.
HARD_NAMES = (
    *("val/AR@100", "val/AR_100", "timing(s)/gen", "/acc", "acc", "a//b", "a/b", "..", "../up", ".", "val", "val/acc"),
    *(
        "val/acc/top1",
        "loss%",
        "loss#",
        "größe",
        "π",
        "with space",
        "x" * 400,
        "x" * 399 + "y",
        "a/",
        "rouge-1:f",
        "\n",
    ),
)


def hard_samples() -> list[Sample]:
    """Return two values of each hard name, of two ranks, and values that are no finite numbers."""
    values = (0.5, float("nan"), float("inf"), -float("inf"))
    rows = [(name, 1.0 + n, 0) for n, name in enumerate(HARD_NAMES)]
    rows += [(name, 2.0 + n, 1) for n, name in enumerate(HARD_NAMES)]
    rows += [("odd", value, 0) for value in values]
    return [
        Sample(name=name, value=value, time_s=1e9 + n, host="h", rank=rank)
        for n, (name, value, rank) in enumerate(rows)
    ]


def config_of(folder: Path, **exports: object) -> ExportsConfig:
    return ExportsConfig(exports=Exports(**exports), job="it", host="h", attempt=1, metrics=folder / "metrics.jsonl")  # type: ignore[arg-type]


@with_clients
@pytest.mark.filterwarnings("ignore")  # The libraries' own.
@pytest.mark.parametrize("kind", ["mlflow", "tensorboard", "prometheus"])
def test_names_and_values_that_a_place_refuses_are_changed_or_named_and_all_others_arrive(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    port = free_port()
    config = config_of(
        tmp_path,
        mlflow_uri=(tmp_path / "store").as_uri(),
        tensorboard=tmp_path / "events",
        prometheus_port=port,
        prometheus_address="127.0.0.1",
    )
    exporter = EXPORTERS[kind](config)
    system = {"cpu/all/used_percent": 3.0, "net/eth0@if5/rx(bytes)": 4.0, "odd": 5.0, "gpu/0/x/y": float("nan")}

    exporter.samples(hard_samples())
    exporter.samples(hard_samples()[:3])
    exporter.system(1e9 + 20, system)
    values = ARRIVED[kind](tmp_path, port)
    exporter.close()
    values = values or ARRIVED[kind](tmp_path, port)

    for n in range(len(HARD_NAMES)):
        assert values.count(1.0 + n) + values.count(2.0 + n) >= 2, HARD_NAMES[n]
    assert {0.5, 3.0, 4.0, 5.0} <= set(values)
    said = capfd.readouterr().err
    assert "refused" not in said
    assert len(said.splitlines()) == len(set(said.splitlines()))
    changed = dict(re.findall(r"metric ('.*') arrives as ('.*'):", said))
    assert len(set(changed.values())) == len(changed)
    if kind == "mlflow":
        assert changed["'val/AR@100'"] == "'val/AR_100'"
        assert changed["'/acc'"] == "'acc'"
        assert "'acc'" in changed  # Its own name was taken.
    assert (changed == {}) == (kind == "prometheus")


def of_mlflow(folder: Path, _port: int) -> list[float]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "store").as_uri())
    (run,) = client.search_runs(["0"])
    histories = [client.get_metric_history(run.info.run_id, key) for key in run.data.metrics]
    return [each.value for history in histories for each in history]


def of_tensorboard(folder: Path, _port: int) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values = []
    for run in sorted((folder / "events").iterdir()):
        events = EventAccumulator(str(run))
        events.Reload()
        values += [each.value for tag in events.Tags()["scalars"] for each in events.Scalars(tag)]
    return values


def of_prometheus(_folder: Path, port: int) -> list[float]:
    lines = [line for line in scraped(port).splitlines() if line.startswith(("toolkit_metric{", "toolkit_system{"))]
    return [*(float(line.rpartition(" ")[2]) for line in lines), 0.5]  # The newest value alone: odd's was -Inf.


ARRIVED: dict[str, Callable[[Path, int], list[float]]] = {
    "mlflow": of_mlflow,
    "tensorboard": of_tensorboard,
    "prometheus": of_prometheus,
}


def test_no_two_metrics_share_a_name_whatever_order_they_come_in(capfd: pytest.CaptureFixture[str]) -> None:
    for names in itertools.permutations(("a@b", "a_b", "a#b", "a", "a/b")):
        for is_tree in (True, False):
            changed = Names("it", lambda name: re.sub("[@#]", "_", name), is_tree=is_tree, most=20)

            arrived = [changed.of(name) for name in (*names, *names)][: len(names)]

            assert len(set(arrived)) == len(names)
            assert not is_tree or not any(f"{a}/" == b[: len(a) + 1] for a in arrived for b in arrived)
    assert len(capfd.readouterr().err) > 0


@with_clients
@pytest.mark.filterwarnings("ignore")  # The libraries' own.
def test_a_batch_of_which_mlflow_refuses_one_value_is_sent_without_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    exporter = MLflow(config_of(tmp_path, mlflow_uri=(tmp_path / "store").as_uri()))
    monkeypatch.setattr(exporter, "_names", Names("it", str))  # As if MLflow refused more than it does.
    names = [f"m{n}" for n in range(40)]
    names[7], names[23] = "bad@1", "bad@2"

    for time_s in (1e9, 1e9 + 1):
        exporter.samples([Sample(name=name, value=n, time_s=time_s, host="h") for n, name in enumerate(names)])
    exporter.close()

    assert sorted(of_mlflow(tmp_path, 0)) == sorted(2 * [float(n) for n in range(40) if n not in (7, 23)])
    said = capfd.readouterr().err
    assert (said.count("'bad@1'"), said.count("mlflow: metric 'bad@2': a value is refused: MlflowException")) == (1, 1)


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

    process = ExporterProcess(config, refuses, "it")
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


@pytest.mark.skipif(find_spec("mlflow") is None, reason="not installed: mlflow")
def test_a_server_that_has_not_answered_at_the_end_of_the_job_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = config_of(tmp_path, mlflow_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        (tmp_path / "config.json").write_bytes(encode(config))
        argv = (sys.executable, "-m", "toolkit.monitor.exporters", str(tmp_path / "config.json"), "mlflow")
        process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        silent.settimeout(DEADLINE_S)
        with silent.accept()[0]:
            process.terminate()

            said = process.communicate(timeout=DEADLINE_S)[1]
    line = "exports: mlflow: the job ended while this was waiting for an answer; no metrics are there\n"
    assert said.endswith(line)
