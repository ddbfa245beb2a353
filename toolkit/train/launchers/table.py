"""Chooses the launcher of a job: the module that its strategy's row names (job/strategy.py). A launcher is a pure
function from a job to a plan."""

from importlib import import_module
from pathlib import Path
from typing import cast

import msgspec

from toolkit.job.job import Job
from toolkit.job.plan import Plan
from toolkit.job.strategy import STRATEGIES
from toolkit.train.launchers import modelparallel


def name_for(job: Job) -> str:
    """Return the launcher's name. Plug-ins, which start ranks themselves, and hosts outside the distribution get
    "script"."""
    alone = job.spec.plugin is not None or not job.cluster.takes_part
    if alone or (job.strategy.name == "parameter_server" and job.cluster.size == 1):  # One host needs no servers.
        return "script"
    return STRATEGIES[job.strategy.name].launcher


def world_size(job: Job) -> int:
    """Return the total number of ranks that the job's launcher starts. A job under MPI may ask for a total."""
    name = name_for(job)
    if name == "script":
        return 1
    if name == "mpi" and job.strategy.processes:
        return job.strategy.processes
    return job.cluster.size * (1 if STRATEGIES[job.strategy.name].one_per_host else job.processes_per_host)


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for *job* on this host; *run_folder* is private to this run (docs/supervision.md)."""
    name = name_for(job)
    modelparallel.check(job, world_size(job))
    planned = cast(Plan, import_module(f"toolkit.train.launchers.{name}").plan(job, run_folder))
    processes = job.settings.processes_per_host or 1
    alone = job.spec.plugin is not None or not (job.cluster.takes_part or job.strategy.name == "script")
    if processes > 1 and STRATEGIES[job.strategy.name].one_per_host and not alone:
        note = (
            f"TOOLKIT_PROCESSES_PER_HOST={processes} has no effect: launcher {name} starts one process on each host."
            " TOOLKIT_DISTRIBUTION=torchrun (or ddp, mpi, smddp, ...) starts several"
        )
        return msgspec.structs.replace(planned, notes=(*planned.notes, note))
    return planned
