"""The container of all binary series files: blocks, appended one after the other, by one writer.

A block is a head (HEAD, 20 bytes, little-endian) and its payload. The first block of a file is always a JSON header.
A reader stops at the first block that is not whole: the writer was killed, or the disk was full. docs/profiler-files.md
has every field.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"TKS1"
# magic, kind, 0, columns in a group (0: not grouped), rows, bytes of the payload, CRC-32 of the payload
HEAD = struct.Struct("<4sBBHIII")
HEADER, RAW, LEVEL, STEPS = range(4)
# A block of more is no block of ours, but bytes that happen to begin like one.
LARGEST = 1 << 28


class Block(NamedTuple):
    """A block in a file; its payload begins at `offset`."""

    kind: int
    group: int
    rows: int
    offset: int
    size: int
    crc: int


class Appender:
    """Appends blocks to a new file at *path*, which begins with the JSON text *header*. Raises OSError as it comes."""

    def __init__(self, path: Path, header: bytes) -> None:
        self.path = path
        self.size = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.append(HEADER, 0, header)

    def append(self, kind: int, rows: int, payload: bytes, *, group: int = 0) -> None:
        """Write one block with one write(2), so that a reader sees all of it or an end of the file."""
        head = HEAD.pack(MAGIC, kind, 0, group, rows, len(payload), zlib.crc32(payload))
        rest = memoryview(head + payload)
        self.size += len(rest)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        """Close the file. Never raises: a network file system reports a full disk only now, when nothing is to do."""
        try:
            os.close(self._fd)
        except OSError:
            pass


def scan(fd: int) -> Iterator[Block]:
    """Yield the whole blocks of the open file *fd*, the header first. Payloads are not read."""
    end = os.fstat(fd).st_size
    position = 0
    while position + HEAD.size <= end:
        magic, kind, _, group, rows, size, crc = HEAD.unpack(os.pread(fd, HEAD.size, position))
        position += HEAD.size
        if magic != MAGIC or size > LARGEST or position + size > end:
            return
        yield Block(kind, group, rows, position, size, crc)
        position += size


def payload(fd: int, block: Block) -> bytes | None:
    """Return the payload of *block*, None if it was damaged."""
    content = os.pread(fd, block.size, block.offset)
    return content if zlib.crc32(content) == block.crc else None


def part(fd: int, block: Block, start: int, size: int) -> bytes:
    """Return *size* bytes of the payload of *block* from *start* on, fewer where the file was cut meanwhile."""
    return os.pread(fd, min(size, block.size - start), block.offset + start)
