"""Runs `train` with faults of its own in it: python faulty.py train STEP... Each named step of the report raises."""

import sys
from typing import Any, NoReturn

from toolkit import log
from toolkit.cli.main import main
from toolkit.train import ending, walk
from toolkit.train.artifacts.scratch import RunFolder
from toolkit.train.attempts import Attempts
from toolkit.train.coordinator import Coordinator
from toolkit.train.line_monitors import LineMonitors
from toolkit.train.platforms import end_report, kubernetes
from toolkit.train.supervise import effects
from toolkit.train.supervise.console import Outlets
from toolkit.train.supervise.hang_reports import HangReports
from toolkit.train.supervise.processes import Processes
from toolkit.train.verdict import cause


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a planted fault")


# Every step between the end of the script and the end of `train`, in their order: (where it is looked up, its name).
STEPS: dict[str, tuple[Any, str]] = {
    "name what outlived the script": (effects, "command_name"),
    "collect the stacks": (HangReports, "_collect"),
    "close the ranks' files": (Processes, "close_files"),
    "read the cause": (cause, "_read_cause"),
    "read whose fault it was": (cause, "_error_text"),
    "find the traceback": (cause, "_find_traceback"),
    "settle": (walk, "_decided"),
    "tell the attempts": (Attempts, "with_restarts"),
    "close the link": (Coordinator, "close"),
    "close the line monitors": (LineMonitors, "close"),
    "remove the run's folder": (RunFolder, "close"),
    "clear what was there before": (end_report, "clear_stale"),
    "tell the console's losses": (Outlets, "lost"),
    "tell the times": (ending, "dated"),
    "mask": (log, "mask"),
    "the failure text": (end_report, "failure_text"),
    "the story": (end_report, "_story"),
    "the termination message": (kubernetes, "_write_message"),
    "flush": (log.Log, "flush"),
    **{what: (end_report, what) for what, _ in end_report.STEPS},
}


def plant(names: list[str]) -> None:
    """Make each step of *names* raise."""
    for name in names:
        where, attribute = STEPS[name]
        if any(name == what for what, _ in end_report.STEPS):
            end_report.STEPS = tuple((what, _fail if what == name else step) for what, step in end_report.STEPS)
        else:
            getattr(where, attribute)  # A step by another name would be no fault.
            setattr(where, attribute, _fail)


if __name__ == "__main__":
    plant(sys.argv[2:])
    main(["train"])
