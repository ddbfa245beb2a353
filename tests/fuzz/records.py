"""Damaged records: a page is made of whatever a job left, it names what is lost, and it never waits."""

import atexit
import contextlib
import gzip
import io
import json
import os
import shutil
import tempfile
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tests.fuzz.places import fresh
from tests.fuzz.target import target
from toolkit.cli.parser import Parser
from toolkit.errors import InternalError, ToolkitError
from toolkit.log import Log
from toolkit.series import findings
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding
from toolkit.series.sample_writer import SampleWriter
from toolkit.series.step_records import StepRecord, StepWriter

BEGAN_S = 1_795_000_000.0
OUTPUT = "hosts/algo-1/opt/ml/output"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("report", "{job}", "--format", "html", "-o", "{job}/page.html"),
    ("report", "{job}", "-o", "-"),
    ("compare", "{whole}", "{job}", "-o", "-"),
    ("compare", "{job}", "{whole}", "--format", "json"),
    ("rules", "diagnose", "{job}", "--rule-output", "{job}/rule-output"),
    ("describe", "{job}"),
)
# Of these, a page must name a file that is empty, or has bytes too many. Not one that is cut: that may be between two
# blocks, where nothing shows it. Not one with a changed byte: that may be an unused one between two checksums.
SERIES = (".samples", ".steps")
# No record can be read in place of these.
UNREADABLE = ("folder", "pipe", "loop", "device")
KINDS = ("flip", "cut", "empty", "insert", "folder", "pipe", "loop", "device", "gone")
_WHOLE: list[Path] = []


class Damage(NamedTuple):
    """A change of one file."""

    file: int
    """A number of the job's files, beyond the last from the first on again."""
    kind: str
    """One of KINDS."""
    place: int
    """The byte, beyond the last from the first on again."""
    content: bytes
    """Bytes to write there."""


def _make_job(folder: Path) -> None:
    output = folder / OUTPUT
    monitor = output / "monitor"
    (monitor / "samples").parent.mkdir(parents=True)
    names = ("cpu/all/used_percent", "cpu/core0/used_percent", "rank/0/cpu_percent", "memory/all/used_bytes")
    columns = tuple(SampleColumn(name=name, unit="%") for name in names)
    writer = SampleWriter(monitor / "samples", columns)
    for number in range(240):
        writer.add(BEGAN_S + number / 2, [50.0, 60.0, 90.0, 1e9 + number])
    writer.close()
    steps = StepWriter(monitor / "steps")
    for rank in (0, 1):
        records = [
            StepRecord(rank=rank, step=step, end_s=BEGAN_S + 10 + step, step_s=1.0, forward_s=0.4, backward_s=0.5)
            for step in range(1, 100)
        ]
        steps.add(records[:50])
        steps.add(records[50:])
    steps.close()
    about = {"host": "algo-1", "start_s": BEGAN_S, "interval_s": 0.5, "machine": {"cores": 1}}
    (monitor / "monitor.json").write_text(json.dumps(about))
    for rule in ("DataWait", "StepOutlier"):
        found = Finding(rule=rule, text="Steps wait.", start_s=BEGAN_S, end_s=BEGAN_S + 60, rank=0, live=True)
        findings.append(monitor / findings.NAME, found)
    rows = [
        {"name": name, "value": 1 / step, "time_s": BEGAN_S + 10 + step, "host": "algo-1", "rank": 0, "step": step}
        for step in range(1, 100)
        for name in ("loss", "epoch")
    ]
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = {
        "status": "failed",
        "exit_code": 1,
        "hosts": ["algo-1"],
        "cause": {
            "kind": "exception",
            "message": "ValueError: nan",
            "rank": 0,
            "failed_ns": int((BEGAN_S + 115) * 1e9),
        },
        "cause_host": "algo-1",
    }
    (output / "outcome.json").write_text(json.dumps(outcome))
    (output / "failure").write_text("ValueError: nan\n")
    (folder / "job.json").write_text(json.dumps(_report(BEGAN_S)))
    (folder / "logs").mkdir()
    (folder / "logs/algo-1.log").write_text("epoch 1\nTraceback (most recent call last):\nValueError: nan\n")
    traces = output / "profiler/framework/steps-1-2"
    traces.mkdir(parents=True)
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 75.0}]
    (traces / "algo-1_rank-0.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def _report(began_s: float) -> dict[str, object]:
    """Return the content of job.json of a job of two minutes."""
    begin = datetime.fromtimestamp(began_s, timezone.utc)
    times = {"start_time": begin.isoformat(), "end_time": (begin + timedelta(minutes=2)).isoformat()}
    bill = {"training_seconds": 120, "billable_seconds": 120}
    return {"name": "job", "status": "Failed", "exit_code": 1, **times, **bill, "hosts": {"algo-1": {"exit_code": 1}}}


def _whole() -> Path:
    if not _WHOLE:
        _WHOLE.append(Path(tempfile.mkdtemp(prefix="toolkit-fuzz-job-")) / "whole")
        atexit.register(shutil.rmtree, _WHOLE[0].parent, ignore_errors=True)
        _make_job(_WHOLE[0])
    return _WHOLE[0]


def _change(path: Path, damage: Damage) -> None:
    content = path.read_bytes()
    place = damage.place % max(len(content), 1)
    path.unlink()
    if damage.kind == "folder":
        path.mkdir()
    elif damage.kind == "pipe":
        os.mkfifo(path)
    elif damage.kind == "loop":
        path.symlink_to(path.name)
    elif damage.kind == "device":
        path.symlink_to("/dev/zero")
    elif damage.kind != "gone":
        new = {
            "flip": content[:place] + bytes([content[place] ^ (damage.content[0] or 1)]) + content[place + 1 :],
            "cut": content[:place],
            "empty": b"",
            "insert": content[:place] + damage.content + content[place:],
        }
        path.write_bytes(new[damage.kind])


DAMAGES = st.builds(
    Damage,
    file=st.integers(0, 30),
    kind=st.sampled_from(KINDS),
    place=st.integers(0, 1 << 20),
    content=st.binary(min_size=1, max_size=40),
)


@target(
    st.lists(DAMAGES, min_size=1, max_size=3, unique_by=lambda damage: damage.file),
    st.sampled_from((0, -3600, 60, 3600)),
    st.sampled_from(COMMANDS),
)
def pages_are_made_of_what_is_left(damages: list[Damage], clock_set_s: int, command: tuple[str, ...]) -> None:
    whole = _whole()
    job = fresh("records") / "job"
    shutil.copytree(whole, job)
    (job / "job.json").write_text(json.dumps(_report(BEGAN_S + clock_set_s)))
    paths = sorted(path for path in job.rglob("*") if path.is_file())
    changed = {paths[damage.file % len(paths)]: damage for damage in damages}
    for path, damage in changed.items():
        _change(path, damage)

    printed = _run([word.format(job=job, whole=whole) for word in command])

    if command[0] == "report" and command[-1] == "-":
        for path, damage in changed.items():
            if damage.kind in UNREADABLE or (path.suffix in SERIES and damage.kind in ("empty", "insert")):
                assert path.name in "".join(printed.split()), f"{path} ({damage}) is not named in:\n{printed[:300]}"


def _run(words: list[str]) -> str:
    """Return what the command prints. Anything but an error for the user goes to the caller."""
    module = import_module(f"toolkit.cli.{words[0]}")
    parser = Parser(prog="toolkit")
    module.add(parser)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            module.run(parser.parse_args(words[1:]), Log())
        except ToolkitError as error:
            assert not isinstance(error, InternalError)
    return printed.getvalue()
