"""toolkit mcp as a program sees it: the client of the protocol's own package, over standard input and output."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.jobs.folders import failed, report, simulated

ROOT = Path(__file__).parents[2]
BED = ROOT / ".beds/mcp"
TOOLKIT = ("-m", "toolkit", "mcp")


def ask(folder: Path, *questions: tuple[str, dict[str, object]]) -> tuple[dict[str, Any], list[tuple[bool, str]]]:
    """Return the tools by name, and for each of *questions*, a tool with its arguments, whether it failed and the
    text."""
    if not (BED / ".ready").exists():
        pytest.skip("needs the test bed .beds/mcp (scripts/beds/mcp)")
    python = str(BED / "bin/python")
    done = subprocess.run(
        [python, ROOT / "tests/programs/mcp_client.py", python, *TOOLKIT],
        input="".join(f"{json.dumps(question)}\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    tools, *answers = map(json.loads, done.stdout.splitlines())
    return tools, answers


def test_a_client_gets_the_answers_of_the_commands(tmp_path: Path) -> None:
    for name in ("first", "second"):
        simulated(tmp_path / name, report(), {"algo-1": failed("algo-2"), "algo-2": failed("algo-2")})

    tools, answers = ask(
        tmp_path,
        ("why", {"job": "first"}),
        ("describe", {"job": "first"}),
        ("compare", {"job": "first", "other": "second"}),
        ("jobs", {"limit": 3}),
        ("why", {"job": "absent"}),
        ("why", {"job": "--help"}),
        ("jobs", {"limit": 0}),
    )

    assert {name: read_only for name, (read_only, _) in tools.items()} == dict.fromkeys(
        ("why", "jobs", "describe", "compare"), True
    )
    why, describe, compare, jobs, absent, option, limit = answers
    assert not any(failed for failed, _ in (why, describe, compare, jobs))
    assert json.loads(why[1])["cause"] == "ValueError: loss is nan (at train.py:5 in step)"
    assert json.loads(describe[1])["Why"]["culprit"] == json.loads(why[1])["culprit"]
    assert json.loads(compare[1])
    assert json.loads(jobs[1]) == []
    assert all(failed for failed, _ in (absent, option, limit))
    assert "absent" in absent[1]
    assert "--help" in option[1]
    assert "expected a number of jobs of at least 1, found 0" in limit[1]


def test_without_the_extra_a_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('not here')\n")

    done = subprocess.run(
        [sys.executable, *TOOLKIT],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )

    assert done.returncode == 78
    assert "pip install 'container-training-toolkit[mcp]'" in done.stderr
