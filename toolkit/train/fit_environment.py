"""Completes the environment of the processes: what ranks share with `train`, and what fits execve(2)."""

import json
import os
from pathlib import Path

import msgspec

from toolkit.job.job import Job
from toolkit.job.plan import ProcessSpec
from toolkit.job.variables import fitting
from toolkit.log import Log
from toolkit.status_pages import pages
from toolkit.train.supervise.hang import HangSettings
from toolkit.train.supervise.stacks import SIGNAL as STACKS_SIGNAL
from toolkit.train.supervise.stop_request import STATUS_FOLDER

# The variable that marks every process of a run: its value is the name of the run's folder.
MARKER = "TOOLKIT_RUN_ID"
# Room for the variables that a launcher adds to the environment of its ranks (torchrun: about 20).
LAUNCHER_ADDS_BYTES = 16384
# Turn torch's Flight Recorder on, in the order in which torch looks (FlightRecorder.hpp, torch 2.9.1 and 2.13). From
# 2.13 on it is on without them, with as many entries.
RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RECORDER_ENTRIES = 2000


def marked(spec: ProcessSpec, run_folder: Path) -> ProcessSpec:
    """Return *spec* with the variable that marks it as a process of this run."""
    return msgspec.structs.replace(spec, environ={**spec.environ, MARKER: run_folder.name})


def measured(job: Job) -> dict[str, str]:
    """Return the variable by which the start-up hook measures the steps of ranks, if the job has a monitor."""
    return {"TOOLKIT_STEP_TIMES": "on"} if job.monitor is not None else {}


def fitted(
    spec: ProcessSpec, run_folder: Path, hang: HangSettings | None, more: dict[str, str], log: Log
) -> ProcessSpec:
    """Return *spec* with *more* variables and an environment that execve takes.

    Variables that do not fit are written to a file that the script can read. *hang*: how this host watches for hangs.
    """
    environ = {**marked(spec, run_folder).environ, **more}
    if spec.rank is not None or spec.starts_ranks:
        environ |= _shared_with_ranks(run_folder, hang, log)
        if "TOOLKIT_COLLECTIVES" in environ and not any(name in environ for name in RECORDER_VARIABLES):
            environ[RECORDER_VARIABLES[0]] = str(RECORDER_ENTRIES)
    total_bytes = os.sysconf("SC_ARG_MAX") - (LAUNCHER_ADDS_BYTES if spec.starts_ranks else 0)
    fitting_variables, spilled = fitting(environ, spec.argv, total_bytes=total_bytes)
    if spilled:
        file = run_folder / "environment.json"
        file.touch(0o600)
        file.write_bytes(json.dumps(spilled).encode())
        fitting_variables["SM_TRAINING_ENV_FILE"] = str(file)
        names = ", ".join(list(spilled)[:8]) + (f" and {len(spilled) - 8} more" if len(spilled) > 8 else "")
        log.warning(f"{names}: too large for an environment; they are in the JSON file SM_TRAINING_ENV_FILE={file}")
    return msgspec.structs.replace(spec, environ=fitting_variables)


def _shared_with_ranks(run_folder: Path, hang: HangSettings | None, log: Log) -> dict[str, str]:
    """Make the folders through which ranks and `train` exchange files; return the variables that name them.

    On a full disk the job runs without them.
    """
    environ = {}
    try:
        (run_folder / STATUS_FOLDER).mkdir()
        pages.create_stop_page(run_folder / STATUS_FOLDER)
        pages.create_request_page(run_folder / STATUS_FOLDER)
        environ["TOOLKIT_STATUS_FOLDER"] = str(run_folder / STATUS_FOLDER)
        if hang is not None:
            hang.prepared.mkdir(exist_ok=True)
            environ["TOOLKIT_STACKS"] = f"{STACKS_SIGNAL}:{hang.prepared}"
        if hang is not None and hang.collectives is not None:
            hang.collectives.mkdir(exist_ok=True)
            environ["TOOLKIT_COLLECTIVES"] = str(hang.collectives)
    except OSError as error:
        log.warning(
            f"{run_folder}: {error.strerror or error}; toolkit.status and the stacks of hangs do not work in this run"
        )
    return environ
