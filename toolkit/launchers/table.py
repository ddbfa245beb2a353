"""Which launcher a strategy means. One row and one file each; a launcher is a pure function from a job to a plan."""

from importlib import import_module
from pathlib import Path
from typing import cast

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.job.plan import Plan

LAUNCHERS = {
    "script": "script",
    "pytorchddp": "torchrun",
    "torch_distributed": "torchrun",
}


def name_for(job: Job) -> str:
    """Return the launcher's name: a plug-in starts its ranks itself, a host outside the distribution runs alone.

    Raises:
        ContractError: the job asks for a strategy that no launcher here serves.
    """
    if job.plugin is not None or not job.cluster.takes_part:
        return "script"
    name = LAUNCHERS.get(job.strategy.name)
    if name is None:
        raise ContractError(
            f"expected a distribution among {', '.join(LAUNCHERS)}, found {job.strategy.name}",
            where="hyperparameters.json",
            hint="This version has no launcher for it; pytorchddp and torch_distributed run under torchrun.",
        )
    return name


def world_size(job: Job) -> int:
    """Return the number of ranks that the job's launcher starts in all."""
    return 1 if name_for(job) == "script" else job.processes_per_host * job.cluster.size


def plan(job: Job, run_folder: Path) -> Plan:
    """Return what to start for *job* on this host; *run_folder* is private to this run (docs/supervision.md)."""
    module = import_module(f"toolkit.launchers.{name_for(job)}")
    return cast(Plan, module.plan(job, run_folder))
