"""Jobs of one and two hosts with a restart, in W&B (offline), Trackio (local) and OpenTelemetry."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.test_exporters import free_port
from tests.monitor.trackers.bed import PYTHON, InBed, needs_bed
from toolkit.metrics import file as metrics_file
from toolkit.metrics.sample import Sample

opentelemetry = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
pytestmark = needs_bed
SCRIPT = """
import os, pathlib, time

attempt = int(os.environ.get("TOOLKIT_RESTART_COUNT", "0"))
for step in range(attempt * 5, attempt * 5 + 5):
    print(f"step={{step}} loss={{1 / (step + 3)!r}}", flush=True)
    print(f"val/acc@1={{step * 0.1!r}}", flush=True)
folder = pathlib.Path({folder!r})
(folder / f"printed-{{attempt}}-{{os.environ['SM_CURRENT_HOST']}}").touch()
while not (folder / "end").exists() or len(list(folder.glob(f"printed-{{attempt}}-*"))) < {hosts}:
    time.sleep(0.05)
raise ValueError("loss is nan")
"""
METRICS = {"loss": "loss=([0-9.e-]+)", "step": r"step=(\d+)", "val/acc@1": "acc@1=([0-9.]+)"}


def read(program: str, *words: str, **environ: str) -> Any:
    """Return what a program beside this file finds, run by the bed's interpreter."""
    path = Path(__file__).with_name(program)
    argv = (PYTHON, str(path), *words)
    return json.loads(subprocess.run(argv, env={**os.environ, **environ}, check=True, capture_output=True).stdout)


@pytest.mark.parametrize("hosts", [1, pytest.param(2, marks=pytest.mark.long)])
def test_every_value_of_every_host_and_attempt_arrives_in_one_run_with_the_cause(tmp_path: Path, hosts: int) -> None:
    from tests.monitor.trackers.receiver import Receiver

    port = free_port()
    (tmp_path / "train.py").write_text(SCRIPT.format(folder=str(tmp_path), hosts=hosts))
    words = [word for name, regex in METRICS.items() for word in ("--metric", f"{name}={regex}")]
    environ = {
        "TOOLKIT_WANDB_PROJECT": "digits",
        "TOOLKIT_TRACKIO_PROJECT": "digits",
        "TOOLKIT_OTLP_ENDPOINT": f"http://127.0.0.1:{port}/",
        "TOOLKIT_MONITOR": "1",
        "TOOLKIT_RESTARTS": "1",
        "WANDB_MODE": "offline",
    }
    program = str(tmp_path / "train.py")
    with InBed(tmp_path, program, "--name", "it", "--hosts", str(hosts), *words, **environ) as job:
        job.until("exports: otel: ")  # Nobody listens yet.
        receiver = Receiver(port)
        try:
            (tmp_path / "end").touch()
            assert job.end() == 1, job.console
        finally:
            receiver.close()

    assert "did not arrive" not in job.console
    names = [f"algo-{n + 1}" for n in range(hosts)]
    outputs = {name: job.folder / "hosts" / name / "opt/ml/output" for name in names}
    written = {name: list(metrics_file.read(output / "metrics.jsonl")) for name, output in outputs.items()}
    assert all(len(samples) == 30 for samples in written.values())
    for name, samples in written.items():
        is_leader = name == "algo-1"
        front = "system" if hosts == 1 else f"system/{name}"
        check_wandb(outputs[name], samples, front, is_leader=is_leader)
        check_trackio(outputs[name], samples, front, is_leader=is_leader)
        points = [point[1:] for point in receiver.points() if point[0] == name]
        got = [(what, value, time_ns) for what, _, value, time_ns in points if what.startswith("toolkit.metric.")]
        cleaned = {"val/acc@1": "val/acc_1"}
        wanted = [
            (f"toolkit.metric.{cleaned.get(sample.name, sample.name)}", sample.value, round(sample.time_s * 1e9))
            for sample in samples
        ]
        assert sorted(got) == sorted(wanted)
        assert any(what == "system.memory.utilization" and 0 < value < 1 for what, _, value, _ in points)
    check_spans(receiver.spans(), hosts)


def key(sample: Sample, *, is_leader: bool) -> str:
    """Return the name of *sample* in a run of several hosts."""
    return sample.name if is_leader else f"{sample.name}/{sample.host}"


def check_wandb(output: Path, samples: list[Sample], front: str, *, is_leader: bool) -> None:
    files = sorted(map(str, output.glob("wandb/offline-run-*/*.wandb")))
    found = read("read_wandb.py", *files)
    ((run, project),) = {tuple(run) for run in found["runs"]}
    assert run.startswith("it-") and project == "digits"
    # A row that W&B's service took with it is sent again under its number, and is the same row for W&B.
    rows = {row["_step"]: row for row in found["history"]}
    got = [(name, value, row["step"]) for row in rows.values() for name, value in row.items()]
    for sample in samples:
        if sample.name != "step":  # It is each row's own "step".
            assert got.count((key(sample, is_leader=is_leader), sample.value, sample.step or 0)) == 1, sample
    system = {name for name, *_ in got if name.startswith("system/")}
    assert f"{front}/cpu/all/used_percent" in system
    assert all(name.startswith(f"{front}/") for name in system)
    assert sorted(rows) == list(range(len(rows)))
    if is_leader:
        summary = found["summary"]
        assert (summary["toolkit/status"], summary["toolkit/exit_code"], summary["toolkit/restarts"]) == (
            "failed",
            1,
            1,
        )
        assert "ValueError: loss is nan" in summary["toolkit/cause"]
        assert found["exits"][-1] == 1


def check_trackio(output: Path, samples: list[Sample], front: str, *, is_leader: bool) -> None:
    found = read("read_trackio.py", "digits", TRACKIO_DIR=str(output / "trackio"))
    (run,) = found["runs"]
    assert run.startswith("it-")
    got = [(name, value, row["step"]) for row in found["logs"] for name, value in row.items()]
    for sample in samples:
        if sample.name != "step":
            assert got.count((key(sample, is_leader=is_leader), sample.value, sample.step or 0)) == 1, sample
    assert all(f"{front}/cpu/all/used_percent" in row for row in found["system"]) and found["system"]
    if is_leader:
        (alert,) = found["alerts"]
        assert alert["title"] == "job failed, exit code 1, restarts: 1"
        assert "ValueError: loss is nan" in alert["text"]


def check_spans(spans: list[Any], hosts: int) -> None:
    assert len({span.trace_id for span in spans}) == 1
    (root,) = (span for span in spans if span.name == "job")
    attempts = [span for span in spans if span.name in ("attempt 1", "attempt 2")]
    ranks = [span for span in spans if span.name == "script"]
    assert not root.parent_span_id
    assert len(attempts) == 2 * hosts
    assert {span.parent_span_id for span in attempts} == {root.span_id}
    assert {span.parent_span_id for span in ranks} <= {span.span_id for span in attempts}
    assert len(ranks) == hosts
    assert [event.name for event in root.events] == ["restart", "exception"]
    assert root.status.code == 2  # ERROR.
    assert "ValueError: loss is nan" in root.status.message
