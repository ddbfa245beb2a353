"""Makes what supervision has of a job: its console, and how this host watches for hangs."""

from pathlib import Path

from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.train.launchers import table as launchers
from toolkit.train.line_monitors import LineMonitors
from toolkit.train.supervise.console import Console, Outlets
from toolkit.train.supervise.hang import HangSettings

# In the run's folder: where ranks write their stacks.
STACKS = "stacks"
# Beside it: where they write their collectives.
COLLECTIVES = "collectives"


def make_console(job: Job, line_monitors: LineMonitors, log: Log, outlets: Outlets, *, terminal: bool) -> Console:
    """Return the console of *job*: which lines get a prefix, and which files copy them.

    *terminal*: if it is a terminal, it understands control sequences.
    """
    settings = job.settings
    several = launchers.world_size(job) > 1
    files = settings.log_files == "on" or (settings.log_files == "auto" and several)
    tags = settings.log_prefix == "auto" and launchers.name_for(job) == "mpi"
    return Console(
        host=job.cluster.current,
        prefix_ranks=settings.log_prefix == "rank" or (settings.log_prefix == "auto" and several) or tags,
        tags=tags,
        make_monitor=line_monitors.make_monitor,
        files=job.folders.output_data / "logs" if files else None,
        file_bytes=settings.log_file_mib << 20,
        note=log.warning,
        outlets=outlets,
        progress=settings.log_progress,
        terminal=terminal,
        rank_output=None if job.torchrun is None else job.torchrun.rank_output,
    )


def make_hang_settings(job: Job, run_folder: Path, number: int = 0) -> HangSettings | None:
    """Return how to watch attempt *number* for hangs; each attempt has its own folder for stacks."""
    job_settings = job.settings
    if not job_settings.stall_s:
        return None
    return HangSettings(
        after_s=job_settings.stall_s,
        stops=job_settings.stall_action == "stop",
        folder=job.folders.output_data / "stacks" / (f"attempt-{number}" if number else ""),
        prepared=run_folder / STACKS,
        collectives=run_folder / COLLECTIVES if job_settings.flight == "on" else None,
        host=job.cluster.current,
    )
