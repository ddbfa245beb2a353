"""Makes how this host watches a job for hangs."""

from pathlib import Path

from toolkit.job.job import Job
from toolkit.train.supervise.hang import HangSettings

# In the run's folder: where ranks write their stacks.
STACKS = "stacks"


def settings(job: Job, run_folder: Path, number: int = 0) -> HangSettings | None:
    """Return how to watch attempt *number* for hangs; each attempt has its own folder for stacks."""
    job_settings = job.settings
    if not job_settings.stall_s:
        return None
    return HangSettings(
        after_s=job_settings.stall_s,
        stops=job_settings.stall_action == "stop",
        folder=job.folders.output_data / "stacks" / (f"attempt-{number}" if number else ""),
        prepared=run_folder / STACKS,
        host=job.cluster.current,
    )
