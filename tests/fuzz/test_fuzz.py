"""The fuzz targets find what they are for, and nothing in the toolkit as it is (scripts/fuzz runs for longer)."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.__main__ import EXAMPLES, TARGETS
from tests.train.base import ROOT
from toolkit.job.documents import folder_names, typed_parameters
from toolkit.metrics import warn
from toolkit.series import blocks
from toolkit.train.source import install, unpack
from toolkit.train.supervise import process

SEARCHED_LONG = "an extended header whose numbers are none"

# Bugs that were there once, by the target that finds each: (module, name, what stood there).
PLANTED: dict[str, tuple[str, Any, str, Any]] = {
    "a process name cut inside a character": (
        "processes",
        process,
        "command_name",
        lambda pid: Path(f"/proc/{pid}/comm").read_text().strip(),
    ),
    "a class that no usual character fits": (
        "regexes",
        warn,
        "_fitting",
        lambda class_: next(character for character in warn._CANDIDATES if re.match(class_, character)),
    ),
    "a requirement with a NUL, or too long for a path": (
        "requirements",
        install,
        "is_file",
        lambda path: path.is_file(),
    ),
    SEARCHED_LONG: ("archives", unpack, "_members", lambda tar: iter(tar)),
    "a host named ../../..": ("names", folder_names, "check_hosts", lambda *_: None),
    "damaged samples that no note names": ("records", blocks, "describe_damage", lambda _: ""),
    "10^400 processes on a host": ("documents", typed_parameters, "MOST", 10**500),
}


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.long)])
def test_fuzzing_finds_nothing(seconds: int) -> None:
    # The same examples each time, as many as fit in the time, so that a finding is of this change.
    words = (sys.executable, "-W", "error", "-m", "tests.fuzz", "--seconds", str(seconds), "--seed", "1")

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"fuzz: {name}: " in done.stdout for name in TARGETS)
    assert ": 0 examples" not in done.stdout


@pytest.mark.parametrize(
    "bug", [bug if bug != SEARCHED_LONG else pytest.param(bug, marks=pytest.mark.long) for bug in PLANTED]
)
def test_a_bug_that_is_planted_again_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, module, name, old = PLANTED[bug]
    monkeypatch.setattr(module, name, old)

    with pytest.raises(Exception):  # noqa: B017 - whatever it is, it comes out of the target
        for number in range(200):
            TARGETS[target].play(number, EXAMPLES, shrink=False)
