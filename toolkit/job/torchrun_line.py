"""The values of a job that a command line of torchrun describes (docs/torchrun.md)."""

from pathlib import Path
from typing import Literal

from toolkit.records import Record


class RankOutput(Record, frozen=True, kw_only=True):
    """The targets of the output of this host's ranks, by --redirects, --tee, --local-ranks-filter and --duplicate-*.

    A stream's bit is 1 for stdout, 2 for stderr.
    """

    folder: Path
    """The folder of the run: attempt_N/LOCAL_RANK/stdout.log and stderr.log are below it."""
    first_rank: int | None
    """The rank whose local rank is 0, where LOCAL_RANK does not tell it (--virtual-local-rank); else None."""
    in_files: tuple[int, ...]
    """By local rank: the bits of the streams that are written to files."""
    on_console: tuple[int, ...]
    """By local rank: the bits of the streams that the console shows."""
    stdout_filters: tuple[str, ...] = ()
    """Lines of stdout that hold one of these texts are also written to attempt_N/filtered_stdout.log."""
    stderr_filters: tuple[str, ...] = ()
    """The same for stderr."""


class TorchrunLine(Record, frozen=True, kw_only=True):
    """The values of a job's command line of torchrun; its script gets no variables of SageMaker's."""

    module: Literal["torch.distributed.run", "torch.distributed.launch"] = "torch.distributed.run"
    """The module of torch that starts the ranks."""
    options: tuple[str, ...] = ()
    """The options that it gets besides the number of hosts and ranks, and the address at which they meet."""
    max_restarts: int = 0
    """The number that TORCHELASTIC_MAX_RESTARTS shows."""
    rank_output: RankOutput
