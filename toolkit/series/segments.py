"""The files of samples as tables: when the rows of a level were, and the values of some of its columns."""

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from toolkit import files, folders
from toolkit.series import blocks
from toolkit.series.arrays import numpy
from toolkit.series.column import Header, SampleColumn
from toolkit.series.levels import GROUP

if TYPE_CHECKING:
    from toolkit.series.reduction import Floats


class Rows(Protocol):
    """The rows of one level. `level`: the seconds of a row, 0 for raw values."""

    level: int

    def times(self) -> "Floats":
        """Return the start of each row; of raw values, their time."""

    def counts(self) -> "Floats":
        """Return how many samples each row stands for."""

    def values(self, group: int, rows: "Any") -> "Any":
        """Return float32 [column of *group*][mean, low, high][row] of *rows*, ascending indexes of rows."""


class _Piece(NamedTuple):
    """Some rows of a table: a block of a level, or all blocks of a raw file (`block` is the first of them)."""

    path: Path
    block: blocks.Block
    rows: int


class SegmentTable:
    """The rows of one level of one segment, in the order in which they were written."""

    def __init__(self, level: int, width: int) -> None:
        self.level = level
        self._width = width
        self._pieces: list[_Piece] = []
        self._times: list[Any] = []
        self._counts: list[Any] = []

    def add(self, path: Path, fd: int, new_blocks: list[blocks.Block]) -> None:
        """Take in the blocks *new_blocks* in the file *path*."""
        np = numpy()
        if self.level == 0:
            if new_blocks:
                times = _records(fd, new_blocks[0], self._width)["time"]
                self._add(_Piece(path, new_blocks[0], len(times)), times.copy(), np.ones(len(times)))
            return
        for block in new_blocks:
            content = blocks.payload(fd, block) if block.kind == blocks.LEVEL and block.rows else None
            if content is not None and len(content) >= 12 * block.rows:
                counts = np.frombuffer(content, "<u4", block.rows, 8 * block.rows).astype(float)
                self._add(_Piece(path, block, block.rows), np.frombuffer(content, "<f8", block.rows), counts)

    def _add(self, piece: _Piece, times: "Floats", counts: "Floats") -> None:
        self._pieces.append(piece)
        self._times.append(times)
        self._counts.append(counts)

    def times(self) -> "Floats":
        """Return the start of each row; of raw values, their time."""
        return self._joined(self._times)

    def counts(self) -> "Floats":
        """Return how many samples each row stands for."""
        return self._joined(self._counts)

    @staticmethod
    def _joined(parts: list[Any]) -> "Floats":
        """Return *parts* as one array, and keep it as the only part."""
        np = numpy()
        if len(parts) != 1:
            parts[:] = [np.concatenate(parts) if parts else np.empty(0)]
        joined: Floats = parts[0]
        return joined

    def values(self, group: int, rows: "Any") -> "Any":
        """Return float32 [column of *group*][mean, low, high][row] of *rows*, ascending indexes of rows."""
        np = numpy()
        first = group * GROUP
        columns = min(GROUP, self._width - first)
        ends = np.cumsum([piece.rows for piece in self._pieces])
        edges = np.searchsorted(rows, np.concatenate(([0], ends)))
        parts = []
        file = _OneFile()
        for number, piece in enumerate(self._pieces):
            if edges[number] == edges[number + 1]:
                continue
            wanted_rows = rows[edges[number] : edges[number + 1]] - (ends[number] - piece.rows)
            part = self._unpacked(file.of(piece.path), piece, group, first, columns)
            # A file that was deleted since its times were read: not measured.
            parts.append(
                np.full((columns, 3, len(wanted_rows)), np.nan, "<f4") if part is None else part[:, :, wanted_rows]
            )
        file.close()
        return np.concatenate(parts, axis=2) if parts else np.empty((columns, 3, 0), "<f4")

    def _unpacked(self, fd: int | None, piece: _Piece, group: int, first: int, columns: int) -> "Any":
        np = numpy()
        if fd is None:
            return None
        if self.level == 0:
            values = _records(fd, piece.block, self._width)["values"][: piece.rows, first : first + columns]
            return np.repeat(values.T[:, None, :], 3, axis=1)
        rows = piece.rows
        groups = -(-self._width // GROUP)
        sizes = np.frombuffer(blocks.part(fd, piece.block, 12 * rows, 4 * groups), "<u4")
        start = 12 * rows + 4 * groups + int(sizes[:group].sum())
        try:
            planes = zlib.decompress(blocks.part(fd, piece.block, start, int(sizes[group])))
        except zlib.error:
            return None
        shape = (columns, 3, rows)
        if len(planes) != 12 * columns * rows:
            return None
        return np.frombuffer(planes, "u1").reshape(4, -1).T.copy().view("<f4").reshape(shape)


class ArrayTable:
    """Raw values in memory as a table: `values[row][column]`."""

    level = 0

    def __init__(self, times: "Floats", values: "Any") -> None:
        self._times = times
        self._values = values

    def times(self) -> "Floats":
        """Return the time of each row."""
        return self._times

    def counts(self) -> "Floats":
        """Return that each row stands for one sample."""
        np = numpy()
        counts: Floats = np.ones(len(self._times))
        return counts

    def values(self, group: int, rows: "Any") -> "Any":
        """Return float32 [column of *group*][mean, low, high][row] of *rows*."""
        np = numpy()
        part = self._values[rows, group * GROUP : (group + 1) * GROUP]
        return np.repeat(part.T[:, None, :], 3, axis=1)


class Segment:
    """The rows that one writer wrote with one list of columns."""

    def __init__(self, columns: tuple[SampleColumn, ...]) -> None:
        self.columns = columns
        self.index = {column.name: number for number, column in enumerate(columns)}
        self.tables: dict[int, Rows] = {}


def load(folder: Path) -> list[Segment]:
    """Return the segments of *folder*, oldest first. Files that are cut, or of others, are read as far as they go."""
    segments: dict[tuple[str, tuple[SampleColumn, ...]], Segment] = {}
    for path in folders.matching(folder, "*.samples", folders.named_elsewhere):
        try:
            fd = files.descriptor(path)
        except OSError:  # Deleted since glob saw it.
            continue
        try:
            _take(path, fd, segments)
        finally:
            os.close(fd)
    return list(segments.values())


def _take(path: Path, fd: int, segments: dict[tuple[str, tuple[SampleColumn, ...]], Segment]) -> None:
    scanned = blocks.scan(fd)
    first = next(scanned, None)
    header = _header(fd, first)
    if header is None:
        return
    key = (path.name.partition("-")[0], header.columns)
    segment = segments.setdefault(key, Segment(header.columns))
    table = segment.tables.setdefault(header.level, SegmentTable(header.level, len(header.columns)))
    assert isinstance(table, SegmentTable)
    # Raw blocks are all alike: the first says where all are.
    after = next(scanned, None)
    rest = [] if after is None else [after] if header.level == 0 else [after, *scanned]
    table.add(path, fd, rest)


def _header(fd: int, block: blocks.Block | None) -> Header | None:
    content = None if block is None or block.kind != blocks.HEADER else blocks.payload(fd, block)
    try:
        return None if content is None else msgspec.json.decode(content, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _records(fd: int, first: blocks.Block, width: int) -> "Any":
    """Return the raw blocks of a file from *first* on as records, without those that are not whole."""
    np = numpy()
    kind = np.dtype([("magic", "S4"), ("head", "V12"), ("crc", "<u4"), ("time", "<f8"), ("values", "<f4", (width,))])
    start = first.offset - blocks.HEAD.size
    content = os.pread(fd, os.fstat(fd).st_size - start, start)
    records = np.frombuffer(content, kind, len(content) // kind.itemsize)
    payloads = (
        content[end - kind.itemsize + blocks.HEAD.size : end]
        for end in range(kind.itemsize, len(content) + 1, kind.itemsize)
    )
    is_whole = records["crc"] == np.fromiter(map(zlib.crc32, payloads), "<u4", len(records))
    return records[is_whole & (records["magic"] == blocks.MAGIC)]


class _OneFile:
    """Opens files one after the other, and the same one once."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._fd: int | None = None

    def of(self, path: Path) -> int | None:
        """Return the open file, None if it is not there any more."""
        if path != self._path:
            self.close()
            self._path = path
            try:
                self._fd = files.descriptor(path)
            except OSError:
                self._fd = None
        return self._fd

    def close(self) -> None:
        """Close the file that is open."""
        if self._fd is not None:
            os.close(self._fd)
        self._path = self._fd = None
