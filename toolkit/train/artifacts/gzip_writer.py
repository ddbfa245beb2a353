"""Compresses a stream to gzip (RFC 1952) on several cores.

The stream is cut into blocks of 256 KiB. Each is compressed by itself, with the 32 KiB before it as its dictionary, and
ends on a byte boundary (Z_SYNC_FLUSH), so that the pieces, put one after the other, are one deflate stream: pigz does
the same (https://zlib.net/pigz/, seen 2026-11). Every gzip reader reads it as it reads any other. The blocks do not
depend on the number of threads, so neither do the bytes.

A block that does not become smaller is stored as it is (images, compressed and encrypted files): deflate would need as
long to find nothing as it needs for text. Samples of the block tell.

zlib-ng (extra `pack`), where it is installed, takes half of zlib's time for the same size within 1 %. Each of the two
gives other bytes, as other versions of zlib do.
"""

import sys
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType, TracebackType
from typing import Protocol

# Measured with 34 MB of weights: 31.7, 31.5 and 31.5 MB at levels 1, 6 and 9, in 0.60, 0.73 and 0.80 s. Logs become
# smaller up to level 6.
LEVEL = 6
BLOCK_BYTES = 1 << 18
WINDOW_BYTES = 1 << 15
# Deflate, no name, no time: the same content gives the same bytes. System 255: unknown.
HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RAW = -15  # Window bits: a deflate stream without a header (zlib's manual, deflateInit2).
MEMORY_LEVEL = 8
# Bytes of the samples. The first is a fiftieth of a compressible block's time; data with 7.8 bits of entropy in a byte,
# which would become 2 % smaller, does not pass for incompressible in one of the others.
FIRST_SAMPLE_BYTES, SAMPLE_BYTES, SAMPLES = 1 << 12, 1 << 14, 4
# One thread feeds the others, at about 1 GB/s: more threads would only wait for it.
MOST_THREADS = 32
# Blocks that wait or are being compressed, for each thread: the others go on while one writes.
AHEAD = 2


class Sink(Protocol):
    """Takes the archive's bytes in order: an open file, or the writer of an object store. `write` takes all of
    them, or raises OSError."""

    def write(self, block: bytes, /) -> object: ...


class GzipWriter:
    """Compresses what is written to it to *sink*, on *threads* threads (1 to 32).

    Use it with `with`: leaving the block writes the end of the stream; after an exception, nothing more is written.
    Holds at most 2 * *threads* + 1 blocks of 256 KiB and their compressed bytes. `sent_bytes`: what
    *sink* has got. *sink* is called only by the thread that writes here, and is not closed.
    """

    def __init__(self, sink: Sink, threads: int) -> None:
        self._sink = sink
        self._zlib = _zlib()
        self._threads = max(1, min(threads, MOST_THREADS))
        self._pool = ThreadPoolExecutor(self._threads, "gzip")
        self._waiting: deque[Future[bytes]] = deque()
        self._block = bytearray()
        self._window = b""
        self._sum = 0
        self._bytes = 0
        self.sent_bytes = 0
        self._send(HEADER)

    def __enter__(self) -> "GzipWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def write(self, data: bytes) -> int:
        """Compress *data*; return its length.

        Raises:
            OSError: the sink cannot be written to.
        """
        taken = 0
        while taken < len(data):
            room = BLOCK_BYTES - len(self._block)
            self._block += data[taken : taken + room]
            taken += room
            if len(self._block) >= BLOCK_BYTES:
                self._compress(zlib.Z_SYNC_FLUSH)
        return len(data)

    def _compress(self, flush: int) -> None:
        block = bytes(self._block)
        self._block.clear()
        self._sum = self._zlib.crc32(block, self._sum)
        self._bytes += len(block)
        self._waiting.append(self._pool.submit(_deflated, self._zlib, block, self._window, flush))
        self._window = block[-WINDOW_BYTES:]
        while len(self._waiting) > AHEAD * self._threads:
            self._send(self._waiting.popleft().result())

    def _finish(self) -> None:
        self._compress(zlib.Z_FINISH)
        while self._waiting:
            self._send(self._waiting.popleft().result())
        self._send(self._sum.to_bytes(4, "little") + (self._bytes & 0xFFFFFFFF).to_bytes(4, "little"))

    def _send(self, block: bytes) -> None:
        self._sink.write(block)
        self.sent_bytes += len(block)


def _deflated(library: ModuleType, block: bytes, window: bytes, flush: int) -> bytes:
    options = {"zdict": window} if window else {}
    level = zlib.Z_NO_COMPRESSION if _is_incompressible(block, window) else LEVEL
    deflate = library.compressobj(level, zlib.DEFLATED, RAW, MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, **options)
    return bytes(deflate.compress(block) + deflate.flush(flush))


def _is_incompressible(block: bytes, window: bytes) -> bool:
    """True if no sample of *block* becomes smaller, by zlib itself, with the bytes before it as its dictionary."""
    if len(block) < BLOCK_BYTES or _shrinks(block[:FIRST_SAMPLE_BYTES], b""):
        return False
    part_bytes = len(block) // SAMPLES
    # Not at the same place of every block: records of a fixed size may begin with what cannot be compressed.
    shift = zlib.crc32(block) % (part_bytes - SAMPLE_BYTES)
    for offset in range(shift, len(block), part_bytes):
        preceding = block[max(offset - WINDOW_BYTES, 0) : offset] or window
        if _shrinks(block[offset : offset + SAMPLE_BYTES], preceding):
            return False
    return True


def _shrinks(sample: bytes, preceding: bytes) -> bool:
    options = {"zdict": preceding} if preceding else {}
    deflate = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, RAW, MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, **options)
    return len(deflate.compress(sample) + deflate.flush()) < len(sample)


def _zlib() -> ModuleType:
    """Return zlib-ng where it is installed, else the interpreter's own zlib."""
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return sys.modules["zlib"]
    module: ModuleType = zlib_ng
    return module
