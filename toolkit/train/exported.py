"""`train`'s side of the exporters of metrics: their configuration."""

from pathlib import Path

from toolkit.job.exports import LATEST, NAME, ExportsConfig
from toolkit.job.job import Job
from toolkit.records import encode


def write_config(job: Job, run_folder: Path, attempt: int) -> Path:
    """Write what the exporters of this attempt need to know; return the file.

    Raises:
        OSError: it cannot be written.
    """
    metrics = job.folders.output / "metrics.jsonl"
    try:
        written_bytes = metrics.stat().st_size  # By an earlier attempt or run.
    except OSError:
        written_bytes = 0
    config = ExportsConfig(
        exports=job.exports,
        job=job.spec.name,
        host=job.cluster.current,
        attempt=attempt,
        metrics=metrics,
        latest=run_folder / LATEST if job.monitor is not None else None,
        skip_bytes=written_bytes,
    )
    path = run_folder / NAME
    path.touch(0o600)  # The URI may hold a password.
    path.write_bytes(encode(config))
    return path
