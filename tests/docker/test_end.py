"""Containers end: asked to, or short of memory; no process in them is left."""

import pytest

from tests.docker.engine import Engine, document, mounted
from tests.train.base import Base

pytestmark = pytest.mark.docker

SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    with open(os.environ["SM_MODEL_DIR"] + "/last", "w") as file:
        file.write("saved")
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    time.sleep(0.05)
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("training", flush=True)
while True:
    time.sleep(600)
"""
# Grandchildren whose parents are gone end, and nobody but PID 1 is there to wait for them.
FORKS = """
import os, pathlib, time
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            time.sleep(0.2)
        os._exit(0)
    os.waitpid(pid, 0)
ends = time.monotonic() + 20
while True:
    stats = [path.read_text().rpartition(")")[2].split() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
    others = [fields for fields in stats if fields[1] == "1"]
    if len(others) == 1 or time.monotonic() > ends:
        break
    time.sleep(0.05)
print("left:", len(others) - 1, "zombies:", sum(fields[0] == "Z" for fields in others), flush=True)
"""
EATS = """
held = []
print("eating", flush=True)
while True:
    held.append(bytearray(16 << 20))
"""


def test_a_script_that_saves_when_the_container_is_stopped_ends_well(engine: Engine, image: str, base: Base) -> None:
    base.program(SAVES)
    box = engine.start(*mounted(base), image, "train")
    box.until("training")

    took_s = box.stop(60)

    assert box.code == 0, box
    assert (base.root / "model/last").read_text() == "saved"
    assert document(base.output / "outcome.json")["status"] == "stopped"
    assert took_s < 50


def test_a_script_that_ignores_the_stop_is_ended_in_time_to_tell(engine: Engine, image: str, base: Base) -> None:
    base.program(IGNORES)
    box = engine.start("--env", "TOOLKIT_GRACE_S=1", *mounted(base), image, "train")
    box.until("training")

    took_s = box.stop(60)

    assert box.code == 143, box
    assert document(base.output / "outcome.json")["status"] == "stopped"
    assert took_s < 50


def test_what_a_careless_script_forks_leaves_no_zombies(engine: Engine, image: str, base: Base) -> None:
    base.program(FORKS)

    ran = engine.run(*mounted(base), image, "train")

    assert ran.code == 0, ran
    assert "left: 0 zombies: 0" in ran.out


def test_a_script_short_of_memory_ends_with_137_and_the_proof(engine: Engine, image: str, base: Base) -> None:
    base.program(EATS)
    box = engine.start("--memory", "200m", "--memory-swap", "200m", *mounted(base), image, "train")

    code = box.wait()

    failure = (base.output / "failure").read_text()
    assert code == 137, box
    assert failure.startswith("ExecuteUserScriptError:\nExitCode 137"), failure
    assert "out of memory" in failure[:1024].lower(), failure
