"""Pure: compares the lines of the soak's ranks with what the ranks counted: none lost, repeated, reordered, changed."""

import itertools
import zlib

Writer = tuple[int, int, str]  # Rank, attempt, "out" or "err".
MOST_FAULTS = 10


class Ledger:
    """The lines that arrived in one place: on the console, or in the ranks' files."""

    def __init__(self) -> None:
        self.counts: dict[Writer, int] = {}
        self.lines = 0
        self.bytes = 0
        self.faults: list[str] = []

    def take(self, line: bytes) -> None:
        """Take *line*, without its newline. Lines of others (`train`, torchrun, tracebacks) are passed over."""
        start = line.find(b"soak ")
        if start < 0 or line.startswith(b"[toolkit] "):  # `train` quotes the last line of a rank that failed.
            return
        body, _, sum_ = line[start:].rpartition(b" ")
        fields = body.split(b" ", 5)
        if len(fields) < 6 or sum_ != b"%08x" % zlib.crc32(body):
            self._fault(f"a line was changed: {line[:120]!r}")
            return
        rank, attempt, stream, number = int(fields[1]), int(fields[2]), fields[3].decode(), int(fields[4])
        if start and not line[:start].endswith(b" rank %d] " % rank):
            self._fault(f"a line of rank {rank} has another prefix: {line[:start]!r}")
        expected = self.counts.get((rank, attempt, stream), 0)
        if number != expected:
            self._fault(f"rank {rank}, attempt {attempt}, {stream}: expected line {expected}, found {number}")
        self.counts[rank, attempt, stream] = number + 1
        self.lines += 1
        self.bytes += len(line) + 1

    def compare(self, written: dict[Writer, int]) -> None:
        """Compare with what the ranks counted. A killed rank may have written one line more than it counted."""
        for writer in sorted({*written, *self.counts}):
            count, counted = written.get(writer, 0), self.counts.get(writer, 0)
            if not count <= counted <= count + 1:
                self._fault("rank {}, attempt {}, {}".format(*writer) + f": wrote {count} lines, found {counted}")

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def medians(values: list[int], parts: int) -> list[int]:
    """Return the median of each of *parts* parts of *values*, in the order in which they were measured."""
    ends = [len(values) * part // parts for part in range(parts + 1)]
    return [sorted(values[begin:end])[(end - begin) // 2] for begin, end in itertools.pairwise(ends)]


def growth(values: list[int]) -> tuple[int, int]:
    """Return the medians of the first and of the last third of *values*, in the order in which they were measured."""
    first, _, last = medians(values, 3)
    return first, last
