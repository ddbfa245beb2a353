"""The time of each test: a plugin of pytest (scripts/test-times), and the tables of docs/lab/test-times.md.

The CPU time of a test is that of the process that runs it, and of all that it started, also of what has not ended yet,
such as the forks of tests/forking.py. It hardly depends on what else the machine does; the wall time does. What another
process starts, such as the container engine, is not in it.
"""

import json
import os
import resource
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from toolkit.records import Record

FILE = "TEST_TIMES_FILE"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class TestTime(Record, frozen=True, kw_only=True):
    """The times of one test, with its fixtures."""

    __test__ = False
    test: str  # Its node id.
    is_long: bool  # Marked as long.
    wall_s: float
    cpu_s: float


def descendants_cpu_s(parent: int) -> float:
    """Return the CPU time of all living descendants of *parent*, and of the children that they have waited for."""
    children: dict[int, list[int]] = {}
    cpu_s: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        cpu_s[int(folder.name)] = sum(map(int, fields[11:15])) * TICK_S
    total_s, waiting = 0.0, [parent]
    while waiting:
        own = children.get(waiting.pop(), [])
        total_s += sum(cpu_s[pid] for pid in own)
        waiting += own
    return total_s


def _own_cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Append a test's time to the file."""
    others_s = descendants_cpu_s(os.getpid())
    cpu_s, began_s = _own_cpu_s(), time.monotonic()
    try:
        return (yield)
    finally:
        wall_s, cpu_s = time.monotonic() - began_s, _own_cpu_s() - cpu_s
        cpu_s += descendants_cpu_s(os.getpid()) - others_s
        is_long = item.get_closest_marker("long") is not None
        row = {"test": item.nodeid, "is_long": is_long, "wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}
        with Path(os.environ[FILE]).open("a") as file:
            print(json.dumps(row), file=file)


def read(path: Path) -> dict[str, TestTime]:
    """Return the times in the file *path* by test; of two of one test the later."""
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {row["test"]: TestTime(**row) for row in rows}


def folder_of(test: str) -> str:
    """Return the folder of a test as the table has it: "tests/rank/hook", "tests/cli", "tests"."""
    parents = test.partition("::")[0].split("/")[:-1]
    return "/".join(parents[: 3 if parents[1:2] in (["rank"], ["train"], ["commands"]) else 2])


def tables(times: Mapping[str, TestTime], dearest: int = 40) -> str:
    """Return the times by folder and those of the *dearest* tests, as Markdown."""
    folders: dict[str, list[TestTime]] = {}
    for row in times.values():
        folders.setdefault(folder_of(row.test), []).append(row)
    ordered = sorted(folders.items(), key=lambda entry: -_sum(entry[1])[1])
    return "\n".join(
        (
            "| folder | tests | wall, s | CPU, s | of them long | wall, s | CPU, s |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, rows) for name, rows in ordered),
            _row("all", list(times.values())),
            "",
            "| test | wall, s | CPU, s | long |",
            "|---|---|---|---|",
            *(
                f"| `{row.test.removeprefix('tests/')}` | {row.wall_s:.1f} | {row.cpu_s:.1f} | {'yes' * row.is_long} |"
                for row in sorted(times.values(), key=lambda row: -row.cpu_s)[:dearest]
            ),
        )
    )


def _row(name: str, rows: list[TestTime]) -> str:
    long = [row for row in rows if row.is_long]
    wall_s, cpu_s = _sum(rows)
    cells = [name, str(len(rows)), f"{wall_s:.0f}", f"{cpu_s:.0f}"]
    cells += [str(len(long)), *(f"{seconds:.0f}" for seconds in _sum(long))] if long else ["", "", ""]
    return f"| {' | '.join(cells)} |"


def _sum(rows: Iterable[TestTime]) -> tuple[float, float]:
    rows = list(rows)
    return sum(row.wall_s for row in rows), sum(row.cpu_s for row in rows)
