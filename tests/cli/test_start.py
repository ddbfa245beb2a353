"""Ctrl-C while a command imports what it needs: no traceback, exit code 130."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Sends SIGINT to its own process when the module MODULE is imported, then runs the console script.
PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
sys.argv = {argv!r}
from toolkit.cli import start
start.{script}()
"""


@pytest.mark.parametrize(
    ("script", "argv", "module"),
    [
        ("toolkit", ["toolkit", "run", "x.py"], "toolkit.cli.main"),
        ("toolkit", ["toolkit", "run", "x.py"], "toolkit.cli.parser"),
        ("toolkit", ["toolkit", "run", "x.py"], "toolkit.cli.run"),
        ("toolkit", ["toolkit", "run", "x.py"], "toolkit.commands.simulate.run"),
        ("toolkit", ["toolkit", "report", "x"], "toolkit.commands.jobs"),
        ("toolkit", ["toolkit", "jobs"], "toolkit.commands.simulate.facts"),
        ("train", ["train"], "toolkit.train.supervise.signals"),
        ("train", ["train"], "toolkit.cli.streams"),
    ],
)
def test_ctrl_c_while_a_command_starts_ends_it_without_a_traceback(
    tmp_path: Path, script: str, argv: list[str], module: str
) -> None:
    program = PROGRAM.format(module=module, argv=argv, script=script)

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    message = "" if script == "toolkit" else "stopped by SIGINT before the script began"
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert message in done.stderr if message else not done.stderr
