"""The two console streams of `train`, and who shares them how."""

from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.supervise.outlet import Outlet, same_sink
from toolkit.supervise.relay import RankFile, Stream, Tap, Way

Note = Callable[[str], None]
MakeTap = Callable[[int | None], Tap | None]


class Console:
    """Makes the streams of processes. `prefix_ranks`: several ranks share the console, each line says whose it is.

    *make_tap* gives the tap for a rank (None for a process that is no rank); *files* is the folder for the ranks' own
    files, None for no such files.
    """

    def __init__(
        self,
        *,
        host: str,
        prefix_ranks: bool,
        make_tap: MakeTap,
        files: Path | None,
        file_bytes: int,
        note: Note,
        stdout: int = 1,
        stderr: int = 2,
    ) -> None:
        paired = same_sink(stdout, stderr)
        self.stdout = Outlet(stdout)
        self.stderr = self.stdout if paired else Outlet(stderr)
        self._host = host
        self.prefixes = prefix_ranks
        self._alone: Way = "paired" if paired else "alone"
        self._make_tap = make_tap
        self._files = files
        self._file_bytes = file_bytes
        self._note = note

    def streams(
        self, name: str, rank: int | None, *, stdout: int, stderr: int, shared: bool
    ) -> tuple[tuple[Stream, Stream], RankFile | None]:
        """Return the streams of one process, reading *stdout* and *stderr*, and the file they share."""
        way: Way = "shared" if shared else self._alone
        who = name if rank is None else f"rank {rank}"
        prefix = f"[{self._host} {who}] ".encode() if shared and self.prefixes else b""
        file = None
        if self._files is not None and rank is not None:
            file = RankFile(self._files / f"{self._host}-rank-{rank}.log", self._file_bytes, self._note)
        tap = self._make_tap(rank)
        out = Stream(stdout, self.stdout, way=way, prefix=prefix, tap=tap, file=file)
        err = Stream(stderr, self.stderr, way=way, prefix=prefix, tap=tap, file=file)
        return (out, err), file

    def outlets(self) -> Iterator[Outlet]:
        """Yield the outlets there are, one or two."""
        yield self.stdout
        if self.stderr is not self.stdout:
            yield self.stderr

    @property
    def pending_bytes(self) -> int:
        return sum(outlet.pending_bytes for outlet in self.outlets())

    @property
    def lost_bytes(self) -> int:
        return sum(outlet.lost_bytes for outlet in self.outlets())
