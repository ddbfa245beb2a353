""".ci/run with its parts replaced: the beds, the checks and the soak run side by side, then the tests; all is said."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each waits until the others have begun: one after the other they never would.
MEETS = """
touch began-$0
for _ in $(seq 3000); do [ $(ls -d began-* | wc -l) = 3 ] && break; sleep 0.02; done
[ $(ls -d began-* | wc -l) = 3 ] || exit 1
"""
PARTS = {
    "scripts/setup": "echo set up",
    "scripts/beds/docker": "[ $# = 0 ] || { echo stopped; exit 0; }; echo docker is made",
    "scripts/beds/one": MEETS.replace("$0", "one") + "echo one is made",
    "scripts/beds/two": MEETS.replace("$0", "two") + "echo two is made",
    "scripts/check": '[ "$*" = --no-tests ] && echo checked',
    "scripts/site": "echo built",
    "scripts/soak": '[ "$*" = "--minutes 3" ] || exit 1' + MEETS.replace("$0", "soak") + "echo soaked",
    "scripts/test": '[ "$*" != "--collect-only -qq" ] || { echo collected; exit 0; }; echo; echo 5 passed in 1.00s',
}


@pytest.mark.parametrize("broken", ["", *PARTS])
def test_every_part_runs_a_failure_of_any_is_the_exit_status_and_the_tests_speak_last(
    tmp_path: Path, broken: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    for name, text in PARTS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n{'exit 3' if name == broken else ''}\n")
        path.chmod(0o755)

    words = (tmp_path / ".ci/run",)
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)

    assert done.returncode == (1 if broken else 0), done.stdout
    assert done.stdout.splitlines()[-1] == "5 passed in 1.00s"
    for message in (
        "set up",
        "docker is made",
        "one is made",
        "two is made",
        "checked",
        "built",
        "soaked",
        "collected",
    ):
        assert f"{message}\n" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.startswith("ci: ") and "FAILED" in line]
    assert len(failed) == (1 if broken not in ("", "scripts/test") else 0)
