"""The ranks that run on a machine, read from the environments of its processes."""

from pathlib import Path

from toolkit.train.probe.ranks import find_running_hosts


def process(proc: Path, pid: int, **environ: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in environ.items()))


def test_ranks_are_found_by_host_with_whether_they_can_be_asked_for_traces(tmp_path: Path) -> None:
    proc, job = tmp_path / "proc", tmp_path / "job"
    statuses = {host: tmp_path / host for host in ("algo-1", "algo-2", "other")}
    for status in statuses.values():
        status.mkdir()
    (proc / "self").mkdir(parents=True)
    (proc / "1").mkdir()  # Another user's.
    for pid, rank in ((10, "0"), (11, "1"), (12, "")):  # The last is torchrun's own process.
        more = {"TOOLKIT_STATUS_FOLDER": str(statuses["algo-1"]), "SM_OUTPUT_DIR": f"{job}/algo-1/output"}
        process(proc, pid, RANK=rank, TOOLKIT_STEP_TIMES="on", **more)
    process(proc, 20, TOOLKIT_STATUS_FOLDER=str(statuses["algo-2"]), SM_OUTPUT_DIR=f"{job}/algo-2/output")
    process(proc, 30, TOOLKIT_STATUS_FOLDER=str(statuses["other"]), SM_OUTPUT_DIR="/opt/ml/output")
    process(proc, 40, TOOLKIT_STATUS_FOLDER=str(tmp_path / "ended"), SM_OUTPUT_DIR=f"{job}/algo-3/output")

    values = find_running_hosts(job, proc)

    assert [(host.status.name, host.ranks, host.traces) for host in values] == [
        ("algo-1", (0, 1), True),
        ("algo-2", (0,), False),
    ]
    assert values[0].output == job / "algo-1/output"
