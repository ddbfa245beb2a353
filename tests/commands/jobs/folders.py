"""Job folders as `toolkit run` and containers leave them, written file by file."""

import json
from pathlib import Path
from typing import Any

import msgspec

from toolkit.job.cause import Cause
from toolkit.job.outcome import Exit, Outcome
from toolkit.job.report import HostReport, JobReport

START_S = 1_795_000_000.0


def failed(host: str, *, rank: int = 1, **more: Any) -> Outcome:
    """Return the outcome of a job whose *rank* on *host* raised ValueError ten seconds after START_S."""
    cause = Cause(
        blame="user",
        kind="ExecuteUserScriptError",
        message="ValueError: loss is nan (at train.py:5 in step)",
        traceback="Traceback (most recent call last):\n  ...\nValueError: loss is nan",
        process=f"rank {rank}",
        pid=71,
        rank=rank,
        local_rank=0,
        process_end="ended with code 3",
        failed_ns=int((START_S + 10) * 1e9),
        primary=True,
    )
    exits = (
        Exit(
            process=f"rank {rank}",
            pid=71,
            rank=rank,
            code=3,
            started_ns=int((START_S + 1) * 1e9),
            ended_ns=int((START_S + 10) * 1e9),
        ),
    )
    return Outcome(status="failed", exit_code=3, cause_host=host, cause=cause, exits=exits, **more)


def output(folder: Path, outcome: Outcome | None = None, metrics: tuple[dict[str, Any], ...] = ()) -> Path:
    """Write an output folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    if outcome is not None:
        (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))
    if metrics:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(metric) + "\n" for metric in metrics))
    return folder


def sample(name: str, value: float | str, after_s: float, host: str = "algo-1", **more: Any) -> dict[str, Any]:
    """Return a line of metrics.jsonl, *after_s* seconds after START_S."""
    return {"name": name, "value": value, "time_s": START_S + after_s, "host": host, "rank": None, "step": None, **more}


def simulated(job_dir: Path, report: JobReport, outcomes: dict[str, Outcome | None], log: str = "") -> Path:
    """Write a job folder of `toolkit run` and return it."""
    for name, outcome in outcomes.items():
        output(job_dir / "hosts" / name / "opt" / "ml" / "output", outcome)
        (job_dir / "logs").mkdir(exist_ok=True)
        (job_dir / "logs" / f"{name}.log").write_text(log)
    (job_dir / "job.json").write_bytes(msgspec.json.encode(report))
    return job_dir


def report(status: str = "Failed", **more: Any) -> JobReport:
    """Return a job.json of two hosts."""
    facts: dict[str, Any] = {
        "exit_code": 3,
        "failed_host": "algo-2",
        "start_time": "2026-11-18T11:06:40.000Z",
        "end_time": "2026-11-18T11:06:52.500Z",
        "training_seconds": 12.5,
        "billable_seconds": 25.0,
        "hosts": {
            "algo-1": HostReport(exit_code=3, status="failed", cause="was healthy; host algo-2 was the cause"),
            "algo-2": HostReport(exit_code=3, status="failed", cause="rank 1 ended with code 3"),
        },
    }
    return msgspec.convert({"name": "digits", "status": status, **facts, **more}, JobReport, from_attributes=True)
