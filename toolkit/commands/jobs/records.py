"""The captured metrics of a job as records or as a DataFrame."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from toolkit import folders
from toolkit.commands.jobs.folders import earlier_metrics, places
from toolkit.errors import UserError
from toolkit.metrics.file import by_time
from toolkit.metrics.sample import Sample

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("timestamp", "metric_name", "value", "host", "rank", "step")


@overload
def metrics(job_dir: str | os.PathLike[str], *, frame: Literal[False] = False) -> list[dict[str, Any]]: ...
@overload
def metrics(job_dir: str | os.PathLike[str], *, frame: Literal[True]) -> "DataFrame": ...
def metrics(job_dir: str | os.PathLike[str], *, frame: bool = False) -> "list[dict[str, Any]] | DataFrame":
    """Return every captured metric of the job in *job_dir*, oldest first.

    One record a value: timestamp (seconds since the epoch), metric_name, value (NaN and infinity too), host, rank and
    step (None where not known). *frame* True: a pandas DataFrame with these columns; rank and step are Int64 there. A
    job without metrics gives an empty list or frame.

    Raises:
        UserError: *job_dir* holds no job, or *frame* is True and pandas is not installed.
    """
    rows = [
        {
            "timestamp": sample.time_s,
            "metric_name": sample.name,
            "value": sample.value,
            "host": sample.host,
            "rank": sample.rank,
            "step": sample.step,
        }
        for sample in samples(Path(job_dir))
    ]
    return _frame(rows) if frame else rows


def samples(job_dir: Path) -> Iterator[Sample]:
    """Yield the samples of all hosts of the job in *job_dir*, by time; each host's own order is kept.

    Raises:
        UserError: *job_dir* holds no job.
    """
    hosts = [place.output / "metrics.jsonl" for place in places(job_dir)]
    files = [path for path in hosts if folders.is_file(path, folders.named_elsewhere)]
    return by_time((*earlier_metrics(job_dir), *files) if files else [job_dir / "metrics.jsonl"])


def _frame(rows: list[dict[str, Any]]) -> "DataFrame":
    try:
        import pandas
    except ImportError:
        hint = "Install pandas, or leave frame=True out: you then get a list of records."
        raise UserError("a DataFrame needs the package pandas, which is not installed", hint=hint) from None
    frame = pandas.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"rank": "Int64", "step": "Int64"})
