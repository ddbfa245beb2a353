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
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from tests.commands.simulate.toolkit_run import DEADLINE_S, ROOT, ToolkitRun
from toolkit.job.cause import Cause
from toolkit.job.exports import Exports, ExportsConfig
from toolkit.job.outcome import Outcome
from toolkit.metrics.file import SampleFile
from toolkit.metrics.sample import Sample
from toolkit.monitor.exporters import exporter_process
from toolkit.monitor.exporters.exporter import Names, NotYetError
from toolkit.monitor.exporters.exporter_process import EXPORTERS, ExporterProcess, Target
from toolkit.monitor.exporters.kept import Kept
from toolkit.monitor.exporters.mlflow import MLflow
from toolkit.monitor.exporters.waiting import Waiting
from toolkit.records import encode
from toolkit.series import findings
from toolkit.series.finding import Finding

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


def until(holds: Callable[[], bool], name: str) -> None:
    """Wait until it *holds*, for clients whose start takes a second of CPU, on a machine that others use, too."""
    deadline_s = time.monotonic() + 3 * DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {3 * DEADLINE_S} s for {name}"
        time.sleep(0.1)


def count_lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in files)


def read_scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of the scalar *name* in the event files of *folder*, as TensorBoard reads them."""
    if not folder.exists():
        return []
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)] if name in events.Tags()["scalars"] else []


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
    losses = [(10, 0.5), (20, 0.25), (30, 0.125)]
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
        job.deadline_s = 3 * DEADLINE_S
        newest = 'toolkit_metric{host="algo-1",name="loss",rank="0"} 0.25'
        until(lambda: newest in scraped(port), newest)
        until(lambda: 'toolkit_system{host="algo-1",kind="memory",' in scraped(port), "the monitor's samples")
        until(lambda: count_lines(store.rglob("metrics/loss")) == 2, "MLflow's first values")
        folder = job.folder / "hosts/algo-1/opt/ml/output/events/algo-1-rank-0"
        until(lambda: read_scalars(folder, "loss") == losses[:2], "TensorBoard's first events")
        (tmp_path / "end").touch()
        assert job.end() == 0, job.console

    assert job.report["metrics"]["loss"] == 0.125
    from mlflow import MlflowClient

    # A busy machine may not send all in the time that `train` gives at the end. A line says so.
    lacks = {name for name in ("tensorboard", "mlflow") if f"exports: {name}: the job ended while" in job.console}
    written = read_scalars(folder, "loss")
    assert written == losses or ("tensorboard" in lacks and written == losses[:2])
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    arrived = [(event.step, event.value) for event in client.get_metric_history(run.info.run_id, "loss")]
    assert arrived == losses or ("mlflow" in lacks and arrived == losses[:2])
    assert (run.info.run_name, run.info.status) == ("it", "RUNNING" if "mlflow" in lacks else "FINISHED")


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
                job.until("exports: ")
            (tmp_path / "end").touch()
            assert job.end() == 0, job.console

    assert "exports: prometheus: OSError: " in job.console
    assert "exports: tensorboard: NotADirectoryError: " in job.console
    assert "exports: mlflow: MlflowException: " in job.console
    waiting = "exports: mlflow: the job ended while this was waiting for an answer"
    assert f"{waiting}: 6 values of metrics and how it ended did not arrive" in job.console


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
    config = {"exports": exports, "job": "it", "host": "algo-1", "attempt": 1, "metrics": str(tmp_path / "none")}
    config |= {"run": "it", "output": str(tmp_path), "state": str(tmp_path)}
    (tmp_path / "config.json").write_text(json.dumps(config))
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
    "val/AR@100",
    "val/AR_100",
    "timing(s)/gen",
    "/acc",
    "acc",
    "a//b",
    "a/b",
    "..",
    "../up",
    ".",
    "val",
    "val/acc",
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
    return ExportsConfig(
        exports=Exports(**exports),  # type: ignore[arg-type]
        job="it",
        host="h",
        run="it",
        attempt=1,
        metrics=folder / "metrics.jsonl",
        output=folder,
        state=folder,
    )


def kept_in(folder: Path) -> Kept:
    return Kept(folder / "kept.json", skip_bytes=0, now_s=lambda: 1e9)


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
    exporter = EXPORTERS[kind].make(config, kept_in(tmp_path))
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
    errors = capfd.readouterr().err
    assert "refused" not in errors
    assert len(errors.splitlines()) == len(set(errors.splitlines()))
    changed = dict(re.findall(r"metric ('.*') arrives as ('.*'):", errors))
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
    return [event.value for history in histories for event in history]


def of_tensorboard(folder: Path, _port: int) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values = []
    for run in sorted((folder / "events").iterdir()):
        events = EventAccumulator(str(run))
        events.Reload()
        values += [event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
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
    exporter = MLflow(config_of(tmp_path, mlflow_uri=(tmp_path / "store").as_uri()), kept_in(tmp_path))
    monkeypatch.setattr(exporter, "_names", Names("it", str))  # As if MLflow refused more than it does.
    names = [f"m{n}" for n in range(40)]
    names[7], names[23] = "bad@1", "bad@2"

    for time_s in (1e9, 1e9 + 1):
        exporter.samples([Sample(name=name, value=n, time_s=time_s, host="h") for n, name in enumerate(names)])
    exporter.close()

    assert sorted(of_mlflow(tmp_path, 0)) == sorted(2 * [float(n) for n in range(40) if n not in (7, 23)])
    errors = capfd.readouterr().err
    assert (errors.count("'bad@1'"), errors.count("mlflow: metric 'bad@2': a value is refused: MlflowException")) == (
        1,
        1,
    )


@with_clients
@pytest.mark.filterwarnings("ignore")  # The libraries' own.
def test_all_hosts_and_attempts_of_a_job_share_a_run_in_mlflow_which_ends_as_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(exporter_process, "PAUSES_S", (0.01,))
    leader = config_of(tmp_path, mlflow_uri=(tmp_path / "store").as_uri())
    leader = msgspec.structs.replace(leader, hosts=2, output=tmp_path / "1")
    follower = msgspec.structs.replace(leader, host="h2", is_leader=False, output=tmp_path / "2")
    cause = Cause(message="ValueError: loss is nan", process="rank 3", kind="ExecuteUserScriptError")
    end = Outcome(status="failed", exit_code=3, cause=cause, cause_host="h2")
    (tmp_path / "outcome.json").write_bytes(encode(end))
    slow = Finding(rule="LoaderBottleneck", text="steps wait", start_s=1, end_s=2, lost_s=9.0, attempt=1)
    for folder in (tmp_path / "1/monitor", tmp_path / "2/monitor"):
        folder.mkdir(parents=True)
        findings.append(folder / "findings.jsonl", slow)
        findings.append(folder / "findings.jsonl", msgspec.structs.replace(slow, attempt=0, text="of another attempt"))

    with pytest.raises(NotYetError):
        MLflow(follower, kept_in(tmp_path / "2"))
    for attempt in (1, 2):
        for config, rank in ((leader, 0), (follower, 1)):
            last = {"outcome": tmp_path / "outcome.json"} if attempt == 2 else {}
            config = msgspec.structs.replace(config, attempt=attempt, metrics=config.output / "metrics.jsonl", **last)
            written = SampleFile(config.metrics, warn=print)
            written.append([Sample(name="loss", value=attempt + rank / 2, time_s=1e9, host=config.host, rank=rank)])
            written.close()
            process = ExporterProcess(config, EXPORTERS["mlflow"], "mlflow", kept_in(config.output))
            process.waiting.add((1e9 + 20, {"cpu/all/used_percent": 50.0 + rank}))
            process.ends.set()
            process.run()

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "store").as_uri())
    (run,) = client.search_runs(["0"])
    values = {
        name: [(event.step, event.value) for event in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert values == {
        "loss": [(0, 1.0), (1, 2.0)],
        "loss.rank-1": [(0, 1.5), (1, 2.5)],
        "system/h/cpu/all/used_percent": [(20, 50.0), (20, 50.0)],
        "system/h2/cpu/all/used_percent": [(20, 51.0), (20, 51.0)],
    }
    assert run.info.status == "FAILED"
    tags = {name: value for name, value in run.data.tags.items() if name.startswith("toolkit.")}
    assert tags == {
        "toolkit.run": "it",
        "toolkit.status": "failed",
        "toolkit.exit_code": "3",
        "toolkit.restarts": "0",
        "toolkit.cause": "ValueError: loss is nan (rank 3 of host h2)",
        "toolkit.findings": "LoaderBottleneck: steps wait",
        "toolkit.findings.h2": "LoaderBottleneck: steps wait",
    }


class Refuses:
    """An exporter whose other side refuses everything but the first value, *times* times."""

    def __init__(self, times: int) -> None:
        self._times = times
        self.got: list[tuple[float, int | None]] = []
        self.rows: list[float] = []
        self.closed = False

    def samples(self, new: Sequence[Sample]) -> None:
        if self.got:
            self._refuse()
        self.got += [(metric.value, metric.step) for metric in new]

    def system(self, time_s: float, values: Mapping[str, float]) -> None:
        self._refuse()
        self.rows.append(time_s)

    def close(self) -> None:
        self.closed = True

    def _refuse(self) -> None:
        if self._times:
            self._times -= 1
            raise ConnectionError("refused")


def losses(path: Path, *values: float) -> int:
    """Append *values* of the metric loss to the file at *path*; return its length."""
    written = SampleFile(path, warn=print)
    written.append([Sample(name="loss", value=value, time_s=1, host="h") for value in values])
    written.close()
    return path.stat().st_size


def test_an_exporter_to_this_machine_ends_after_three_failures_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter_process, "PAUSES_S", (0.01,))
    first_bytes = losses(tmp_path / "metrics.jsonl", 1.0)
    losses(tmp_path / "metrics.jsonl", 2.0)
    refuses = Refuses(99)
    kept = Kept(tmp_path / "kept.json", skip_bytes=first_bytes, now_s=lambda: 0.0)
    target = Target(make=lambda _config, _kept: refuses, is_remote=False, every_s=0.01)
    process = ExporterProcess(config_of(tmp_path), target, "it", kept)
    process.waiting.add((5.0, {"cpu": None}))

    process.run()  # Ends by itself, without SIGTERM.

    assert refuses.got == [(2.0, 0)]  # Not the first one: it is an earlier run's.
    assert capfd.readouterr().err == (
        "exports: it: ConnectionError: refused; metrics wait here and are sent again\n"
        "exports: it: ConnectionError: refused; after 3 failures no more metrics go there\n"
    )


def test_what_a_server_refuses_for_a_while_arrives_once_and_in_order_and_then_in_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exporter_process, "PAUSES_S", (0.01,))
    monkeypatch.setattr(exporter_process, "MOST", 2)
    losses(tmp_path / "metrics.jsonl", 1.0, 2.0, 3.0, 4.0)
    refuses = Refuses(20)
    target = Target(make=lambda _config, _kept: refuses, is_remote=True, every_s=0.01)
    process = ExporterProcess(config_of(tmp_path), target, "it", kept_in(tmp_path))
    process.waiting.add((5.0, {"cpu": None}))
    process.ends.set()

    process.run()
    losses(tmp_path / "metrics.jsonl", 5.0)
    process = ExporterProcess(config_of(tmp_path), target, "it", kept_in(tmp_path))
    process.ends.set()
    process.run()

    assert refuses.got == [(1.0, 0), (2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4)]
    assert refuses.rows == [5.0]
    assert process.missing() == ""
    assert capfd.readouterr().err == (
        "exports: it: ConnectionError: refused; metrics wait here and are sent again\n"
        "exports: it: it answers again after 0 s; nothing is lost\n"
    )


def test_samples_of_the_monitor_beyond_the_queue_are_dropped_oldest_first_and_counted(tmp_path: Path) -> None:
    waiting = Waiting([], most=3)

    for time_s in range(5):
        waiting.add((float(time_s), {}))

    assert [time_s for time_s, _ in waiting.all()] == [2.0, 3.0, 4.0]
    assert waiting.lost == 2
    first = waiting.first()
    assert first is not None
    waiting.add((5.0, {}))  # Drops the first, which was just being sent.
    waiting.done(first)
    assert [time_s for time_s, _ in waiting.all()] == [3.0, 4.0, 5.0]


@pytest.mark.skipif(find_spec("mlflow") is None, reason="not installed: mlflow")
def test_what_a_server_has_not_taken_at_the_end_of_the_job_is_counted(tmp_path: Path) -> None:
    losses(tmp_path / "metrics.jsonl", 1.0, 2.0)
    (tmp_path / "outcome.json").write_bytes(encode(Outcome(status="succeeded", exit_code=0)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = config_of(tmp_path, mlflow_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        config = msgspec.structs.replace(config, outcome=tmp_path / "outcome.json")
        (tmp_path / "config.json").write_bytes(encode(config))
        argv = (sys.executable, "-m", "toolkit.monitor.exporters", str(tmp_path / "config.json"), "mlflow")
        process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        silent.settimeout(DEADLINE_S)
        with silent.accept()[0]:
            process.terminate()

            errors = process.communicate(timeout=DEADLINE_S)[1]
    assert errors.endswith(
        "exports: mlflow: the job ended while this was waiting for an answer: 2 values of metrics and how it ended did"
        f" not arrive; {tmp_path} has all of it\n"
    )


def test_a_client_that_holds_values_tells_the_last_process_that_its_server_did_not_answer(tmp_path: Path) -> None:
    def read_kept() -> Kept:
        return Kept(tmp_path / "kept.json", skip_bytes=0, now_s=lambda: 0.0)

    kept = read_kept()
    kept.sent_bytes, kept.is_failing = 10, True
    kept.save_waiting([(1.0, {"cpu": 2.0})])
    assert read_kept().is_failing
    assert (read_kept().sent_bytes, read_kept().waiting) == (0, [(1.0, {"cpu": 2.0})])

    kept.is_failing = False
    kept.save_waiting([])
    assert not read_kept().is_failing
