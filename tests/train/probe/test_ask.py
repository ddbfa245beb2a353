"""A program that `train` asks a question ends with the wait for its answer."""

import subprocess
import sys

from tests.project.test_repository import ROOT

INTERRUPTED = """
import random, signal
from pathlib import Path
from toolkit.train.probe.ask import ask

class Stop(BaseException): pass

def stop(number, frame): raise Stop

signal.signal(signal.SIGALRM, stop)
stops = 0
for count in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 6e-3))
        ask(("sleep", "600"), within_s=60)
    except Stop:
        stops += 1
print(stops, Path("/proc/thread-self/children").read_text().split())
"""


def test_a_stop_while_the_program_starts_ends_it() -> None:
    """The stop comes anywhere in the start, which takes a millisecond or two, or after it."""
    argv = (sys.executable, "-c", INTERRUPTED)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.stdout == "300 []\n", done.stdout + done.stderr
