"""Makes the console of a job: which lines get a prefix, and which files copy them."""

from toolkit.job.job import Job
from toolkit.log import Log
from toolkit.train.launchers import table as launchers
from toolkit.train.line_monitors import LineMonitors
from toolkit.train.supervise.console import Console, Outlets


def console(job: Job, line_monitors: LineMonitors, log: Log, outlets: Outlets, *, terminal: bool) -> Console:
    """Return the console of *job*. *terminal*: if it is a terminal, it understands control sequences."""
    settings = job.settings
    several = launchers.world_size(job) > 1
    files = settings.log_files == "on" or (settings.log_files == "auto" and several)
    tags = settings.log_prefix == "auto" and launchers.name_for(job) == "mpi"
    return Console(
        host=job.cluster.current,
        prefix_ranks=settings.log_prefix == "rank" or (settings.log_prefix == "auto" and several) or tags,
        tags=tags,
        make_monitor=line_monitors.monitor,
        files=job.folders.output_data / "logs" if files else None,
        file_bytes=settings.log_file_mib << 20,
        note=log.warning,
        outlets=outlets,
        progress=settings.log_progress,
        terminal=terminal,
    )
