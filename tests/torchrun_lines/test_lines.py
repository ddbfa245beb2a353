"""Launch lines of public repositories, read; scripts/torchrun-lines runs them all."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torchrun_lines.runner import NODE, read_lines, run_line
from toolkit.errors import ContractError
from toolkit.job.machine import Machine
from toolkit.train.platforms.torchrun_launch import read_launch, without_program

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
# Each program that may begin a line shows its words, and `tune run` and srun the words that they pass on.
SHOWS = """\
show() { printf '%s\\0' "$@"; }
torchrun() { show torchrun "$@"; }; python() { show python "$@"; }; srun() { "$@"; }; tune() { shift; show "$@"; }
"""
MACHINE = Machine(cpus=4, cpus_total=8, memory_bytes=1 << 30)


def words_of(row: dict[str, Any]) -> list[str]:
    line = row["line"].replace(NODE, "0")
    for old, new in row.get("replace", {}).items():
        line = line.replace(old, new)
    variables = {name: value.replace(NODE, "0") for name, value in row.get("set", {}).items()}
    shown = subprocess.run(
        ["bash", "-c", SHOWS + line, "/project/launch.sh"],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        check=True,
        text=True,
    )
    return shown.stdout.split("\0")[:-1]


def test_every_line_is_read_with_its_hosts_and_ranks() -> None:
    rows = read_lines()

    for row in rows:
        line = without_program(words_of(row))
        if "ends" in row:
            with pytest.raises(ContractError, match=row["ends"]):
                read_launch(line, {}, Path("/project")).count_processes(MACHINE)
            continue
        launch = read_launch(line, {}, Path("/project"))
        assert (launch.hosts, launch.hosts * launch.count_processes(MACHINE)) == (row.get("hosts", 1), row["ranks"]), (
            row
        )
        assert Path(launch.script.entry).name == Path(row["script"]).name if "script" in row else row["module"], row
    assert len(rows) >= 40
    assert len({row["source"] for row in rows}) == len(rows)


@pytest.mark.long
@pytest.mark.torch
def test_a_line_for_two_hosts_runs_as_it_stands(tmp_path: Path) -> None:
    (row,) = (row for row in read_lines() if row["source"].startswith("open-mmlab/mmpretrain"))

    wrong, end = run_line(row, tmp_path)

    assert not wrong, end
