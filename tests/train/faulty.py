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
from toolkit.train.platforms import kubernetes, outcome_files
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
    "clear what was there before": (outcome_files, "clear_stale"),
    "tell the console's losses": (Outlets, "lost"),
    "tell the times": (ending, "dated"),
    "mask": (log, "mask"),
    "the failure text": (outcome_files, "failure_text"),
    "the story": (outcome_files, "_story"),
    "the termination message": (kubernetes, "_write_message"),
    "flush": (log.Log, "flush"),
    **{step_name: (outcome_files, step_name) for step_name, _ in outcome_files.STEPS},
}


def plant(names: list[str]) -> None:
    """Make each step of *names* raise."""
    for name in names:
        module, attribute = STEPS[name]
        if any(name == step_name for step_name, _ in outcome_files.STEPS):
            outcome_files.STEPS = tuple(
                (step_name, _fail if step_name == name else step) for step_name, step in outcome_files.STEPS
            )
        else:
            getattr(module, attribute)  # A step by another name would be no fault.
            setattr(module, attribute, _fail)


if __name__ == "__main__":
    plant(sys.argv[2:])
    main(["train"])
