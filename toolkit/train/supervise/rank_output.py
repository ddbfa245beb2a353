"""The files of ranks that a command line of torchrun asks for, in the places where torchrun writes them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from toolkit.job.torchrun_line import RankOutput
from toolkit.train.supervise.relay import FilteredFile, RankFile

# torchrun's files are never rotated.
NEVER = 1 << 62
NAMES = ("stdout", "stderr")

Opened = tuple[tuple[RankFile, ...], tuple[tuple[RankFile | FilteredFile, ...], ...], tuple[bool, bool]]


class RankOutputFiles:
    """Opens the files of each start of a rank: the n-th start is attempt n - 1."""

    def __init__(self, output: RankOutput, note: Callable[[str], None]) -> None:
        self._output = output
        self._note = note
        self._starts: Counter[int] = Counter()
        # By path: the files that the ranks of an attempt share.
        self._filtered: dict[Path, RankFile] = {}

    def open(self, rank: int, local_rank: int | None, prefixes: tuple[bytes, bytes]) -> Opened:
        """Return (files to close, those of stdout and of stderr, whether the console shows each) for *rank*.

        *local_rank*: as its LOCAL_RANK says.
        """
        attempt = self._output.folder / f"attempt_{self._starts[rank]}"
        self._starts[rank] += 1
        if local_rank is None or self._output.first_rank is not None:
            local_rank = rank - (self._output.first_rank or 0)
        in_files, on_console = self._output.in_files[local_rank], self._output.on_console[local_rank]
        own: list[RankFile] = []
        by_stream: list[tuple[RankFile | FilteredFile, ...]] = []
        filters = (self._output.stdout_filters, self._output.stderr_filters)
        for name, bit, texts, prefix in zip(NAMES, (1, 2), filters, prefixes, strict=True):
            files: list[RankFile | FilteredFile] = []
            if in_files & bit:
                file = RankFile(attempt / str(local_rank) / f"{name}.log", NEVER, self._note)
                own.append(file)
                files.append(file)
            if texts and on_console & bit:
                shared = self._shared(attempt / f"filtered_{name}.log")
                files.append(FilteredFile(shared, tuple(text.encode() for text in texts), prefix))
            by_stream.append(tuple(files))
        return tuple(own), tuple(by_stream), (bool(on_console & 1), bool(on_console & 2))

    def _shared(self, path: Path) -> RankFile:
        if path not in self._filtered:
            self._filtered[path] = RankFile(path, NEVER, self._note)
        return self._filtered[path]
