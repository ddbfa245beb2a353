"""The attempts of one host's script, without processes."""

import gc
import weakref
from pathlib import Path
from typing import Any, cast

from tests.job.test_variables import a_job
from toolkit.job.restart import Restart, Steps
from toolkit.log import Log
from toolkit.train.attempts import Attempts
from toolkit.train.line_monitors import LineMonitors


class NoMonitors:
    """Line monitors of a job that asks for none."""

    steps = Steps()

    def again(self) -> None:
        pass


class Held:
    """What an attempt leaves: an object that refers to itself."""

    def __init__(self) -> None:
        self.itself: Any = self


def test_a_restart_frees_what_the_attempt_left_even_if_it_is_old(tmp_path: Path) -> None:
    attempts = Attempts(a_job(), tmp_path, cast(LineMonitors, NoMonitors()), Log())
    held = Held()
    left = weakref.ref(held)
    gc.collect()  # Now it is old: Python looks at it again only after a quarter more objects have become old.
    del held

    attempts.begin(Restart(attempt=1, host="a", cause="rank 0 ended with code 1"))

    assert left() is None
