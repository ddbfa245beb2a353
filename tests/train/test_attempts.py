"""The attempts of one host's script, without processes."""

import gc
import weakref
from pathlib import Path
from typing import Any, cast

import msgspec

from tests.job.test_variables import a_job
from toolkit.job.cause import Cause
from toolkit.job.outcome import Outcome
from toolkit.job.restart import Restart, Steps
from toolkit.log import Log
from toolkit.train.attempts import Attempts
from toolkit.train.line_monitors import LineMonitors


class NoMonitors:
    """Line monitors of a job that asks for none."""

    steps = Steps()

    def begin_attempt(self) -> None:
        pass


class Held:
    """The remains of an attempt: an object that refers to itself."""

    def __init__(self) -> None:
        self.itself: Any = self


def test_a_restart_frees_what_the_attempt_left_even_if_it_is_old(tmp_path: Path) -> None:
    attempts = Attempts(a_job(), tmp_path, cast(LineMonitors, NoMonitors()), Log())
    held = Held()
    left = weakref.ref(held)
    gc.collect()  # Now it is old: Python looks at it again only after a quarter more objects have become old.
    del held

    attempts.begin(Restart(attempt=1, host="a", message="rank 0 ended with code 1"))

    assert left() is None


def failing(tmp_path: Path, restarts: int) -> Attempts:
    """The attempts of a job whose ranks had begun to save, and that may be restarted so often."""
    job = a_job()
    settings = msgspec.structs.replace(job.settings, restarts=restarts)
    folders = msgspec.structs.replace(job.folders, checkpoints=tmp_path / "checkpoints")
    folders.checkpoints.mkdir(parents=True)
    job = msgspec.structs.replace(job, settings=settings, folders=folders)
    attempts = Attempts(job, tmp_path, cast(LineMonitors, NoMonitors()), Log())
    (folders.checkpoints / "step-1").write_text("saved")
    return attempts


FAILED = Outcome(
    status="failed", exit_code=3, cause=Cause(kind="ExecuteUserScriptError", message="no shard 7", primary=True)
)


def test_a_stop_between_a_failure_and_its_restart_has_stopped_the_job(tmp_path: Path) -> None:
    decided = failing(tmp_path, 2).alone(FAILED, stopped_by=15)

    assert isinstance(decided, Outcome)
    assert (decided.status, decided.exit_code, decided.cause.kind) == ("stopped", 143, "Stopped")
    assert decided.cause.message == "stopped by SIGTERM before attempt 1 of the script began; no shard 7"


def test_a_failure_before_a_stop_that_no_restart_would_follow_stays_one(tmp_path: Path) -> None:
    assert failing(tmp_path, 0).alone(FAILED, stopped_by=15) is FAILED
    assert isinstance(failing(tmp_path / "more", 2).alone(FAILED, stopped_by=None), Restart)
