"""The two console streams of `train`, and who shares them how."""

from collections.abc import Callable, Iterator
from pathlib import Path

from toolkit.supervise.outlet import Outlet, same_sink
from toolkit.supervise.relay import RankFile, Stream, Tap, Way

Note = Callable[[str], None]
MakeTap = Callable[[int | None], Tap | None]


class Console:
    """Makes the streams of processes. `prefix_ranks`: several ranks share the console, each line says whose it is.

    *tags*: the way mpirun says it, `[1,mpirank:R,HOST]<stdout>:`, which people's searches of SageMaker's logs know.
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
        tags: bool = False,
        stdout: int = 1,
        stderr: int = 2,
    ) -> None:
        paired = same_sink(stdout, stderr)
        self.stdout = Outlet(stdout)
        self.stderr = self.stdout if paired else Outlet(stderr)
        self._host = host
        self.prefixes = prefix_ranks
        self._tags = tags
        self._alone: Way = "paired" if paired else "alone"
        self._make_tap = make_tap
        self._files = files
        self._file_bytes = file_bytes
        self._note = note
        self._opened: set[Path] = set()

    def streams(
        self, name: str, rank: int | None, *, stdout: int, stderr: int, shared: bool
    ) -> tuple[tuple[Stream, Stream], RankFile | None]:
        """Return the streams of one process, reading *stdout* and *stderr*, and the file they share."""
        way: Way = "shared" if shared else self._alone
        prefixes = self._prefixes(name, rank) if shared and self.prefixes else (b"", b"")
        file = None
        if self._files is not None and rank is not None:
            path = self._files / f"{self._host}-rank-{rank}.log"
            file = RankFile(path, self._file_bytes, self._note, goes_on=path in self._opened)
            self._opened.add(path)
        tap = self._make_tap(rank)
        out = Stream(stdout, self.stdout, way=way, prefix=prefixes[0], tap=tap, file=file)
        err = Stream(stderr, self.stderr, way=way, prefix=prefixes[1], tap=tap, file=file)
        return (out, err), file

    def _prefixes(self, name: str, rank: int | None) -> tuple[bytes, bytes]:
        if self._tags and rank is not None:
            who = f"[1,mpirank:{rank},{self._host}]"
            return f"{who}<stdout>:".encode(), f"{who}<stderr>:".encode()
        prefix = f"[{self._host} {name if rank is None else f'rank {rank}'}] ".encode()
        return prefix, prefix

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
