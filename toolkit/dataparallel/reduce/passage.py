"""An all-reduce through the arena: what one rank of a host does for it, chunk by chunk.

Each rank copies its chunk into its row, sums its own shard of it over all rows, and copies the sums of all shards out.
The three run as a pipeline with one meeting a step: in step i a rank copies out chunk i-2 (or i-3 with several hosts),
copies in chunk i, and sums chunk i-1. Between hosts the sums of a shard are added by gloo, among the ranks with the
same place on each host (a rail), while the next step goes on: over the network goes each sum once, not each gradient.

What may be written when (a row twice, sums thrice, used in turn):
- a row's buffer is written again two steps later: between lie a meeting after everyone has summed from it;
- a sum's buffer is written again three steps later: by then all have copied out of it and met once more;
- the last step of a call has no meeting: the next call's first meeting comes before its first sum.

Sums go in the order of ranks, so they are the same in every run; 16-bit floats are summed in 32 bits and rounded once.
"""

import ctypes
from datetime import timedelta
from typing import Any

from toolkit.dataparallel.reduce.arena import HEAD_BYTES, Arena
from toolkit.dataparallel.reduce.spans import LINE_BYTES, chunks, cut, pieces

# Of 0.5, 2 and 8 MiB larger rows were better with 4 ranks on 2 busy cores (each meeting may wait for the scheduler), by
# 40 % between the ends; 4 MiB keeps the rows of 4 ranks within a cache of 32 MiB and the memory of 8 below 80 MiB.
ROW_BYTES = 4 << 20
# Rows that begin at the same place of their page would meet in the same cache sets.
STRIDE_BYTES = ROW_BYTES + 4096 + LINE_BYTES
SUMS = 3


def bytes_needed(size: int) -> int:
    """Return the bytes of an arena for *size* ranks: 2 rows for each and 3 for sums."""
    return (2 * size + SUMS) * STRIDE_BYTES


class Passage:
    """The way through *arena*, and through *rail* (a gloo group of the ranks of the same place, or None) to others."""

    def __init__(self, arena: Arena, rail: Any, hosts: int) -> None:
        import torch

        self._torch = torch
        self._arena = arena
        self._rail = rail
        self._hosts = hosts
        self._timeout = timedelta(seconds=arena.timeout_s)
        self._bytes = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self._address = self._bytes.data_ptr()
        self._scratch = torch.empty(ROW_BYTES // 2 // arena.size + LINE_BYTES, dtype=torch.float32)
        self._lag = 2 if rail is None else 3
        self._sent_bytes = 0

    def allreduce(self, tensors: list[Any], average: bool) -> int:
        """Replace *tensors*, contiguous and of one floating type, by their sums (means) over all ranks.

        Return the bytes that this rank sent: written into shared memory for its mates, and sent to other hosts.

        Raises:
            Gone, Late, Closed (arena.py); RuntimeError: the rail broke, in gloo's words.
        """
        what = f"an all-reduce of {sum(tensor.nbytes for tensor in tensors):,} bytes"
        dtype = tensors[0].dtype
        sizes = [tensor.nbytes for tensor in tensors]
        addresses = [tensor.data_ptr() for tensor in tensors]
        spans = chunks(sum(sizes), ROW_BYTES)
        under_way = None
        self._sent_bytes = sum(sizes)
        for step in range(len(spans) + self._lag):
            if step >= self._lag:
                self._copy(addresses, sizes, spans[step - self._lag], self._sums_at(step - self._lag), out=True)
            if step < len(spans):
                self._copy(addresses, sizes, spans[step], self._row_at(step, self._arena.me), out=False)
            if under_way is not None:
                under_way.wait(self._timeout)
                under_way = None
            if 0 < step <= len(spans):
                under_way = self._sum(step - 1, spans[step - 1], dtype, average)
            if step < len(spans) + self._lag - 1:
                self._arena.meet(what)
        return self._sent_bytes

    def _row_at(self, number: int, rank: int) -> int:
        return HEAD_BYTES + ((number & 1) * self._arena.size + rank) * STRIDE_BYTES

    def _sums_at(self, number: int) -> int:
        return HEAD_BYTES + (2 * self._arena.size + number % SUMS) * STRIDE_BYTES

    def _copy(self, addresses: list[int], sizes: list[int], span: tuple[int, int], at: int, *, out: bool) -> None:
        # memmove: one call without the GIL; torch's copy_ takes 15 % longer and would start OpenMP threads.
        for number, begin, end, where in pieces(sizes, *span):
            shared, own = self._address + at + where, addresses[number] + begin
            ctypes.memmove(own if out else shared, shared if out else own, end - begin)

    def _sum(self, number: int, span: tuple[int, int], dtype: Any, average: bool) -> Any:
        """Sum this rank's shard of the chunk; return the rail's Work for it, None where there is none."""
        start, stop = cut(span[1] - span[0], self._arena.size, self._arena.me)
        if start == stop:
            return None
        rows = [self._shard(self._row_at(number, rank), start, stop, dtype) for rank in range(self._arena.size)]
        into = self._shard(self._sums_at(number), start, stop, dtype)
        share = 1 / (self._arena.size * self._hosts) if average else None
        if dtype.itemsize == 2:
            total = self._scratch[: into.numel()]
            total.copy_(rows[0])
            for row in rows[1:]:
                total.add_(row)
            if share is not None:
                total.mul_(share)
            into.copy_(total)
        else:
            self._torch.add(rows[0], rows[1], out=into)
            for row in rows[2:]:
                into.add_(row)
            if share is not None:
                into.mul_(share)
        self._sent_bytes += stop - start
        if self._rail is None:
            return None
        self._sent_bytes += 2 * (self._hosts - 1) * (stop - start) // self._hosts
        return self._rail.allreduce([into])

    def _shard(self, at: int, start: int, stop: int, dtype: Any) -> Any:
        return self._bytes[at + start : at + stop].view(dtype)
