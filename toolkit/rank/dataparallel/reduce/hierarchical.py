"""One rank's part of the hierarchical all-reduce: through shared memory on each host, over TCP between hosts.

Each rank copies its chunk into its row, sums its own shard of the chunk over all rows, and copies the sums of all
shards out. It does not copy its own shard in where that lies in one tensor: no other rank reads it. These three are a
pipeline with one barrier per step. In step i a rank copies out chunk i-2 (or i-3 with several hosts), copies in chunk
i and sums chunk i-1. Between hosts, the ranks with the same local rank add up their sums of the shard over their TCP
group. The exchange begins in the same step and ends in the next. The network thus carries each host's sums once, not
every rank's gradients. Two hosts exchange their sums; more cut them into one piece per host, which adds it up for
all.

Why no buffer is overwritten too early (two buffers for each row, three for sums, used in turn):
- a row's buffer is written again two steps later; the barrier between comes after all ranks have summed from it;
- a sum's buffer is written again three steps later; by then all ranks have copied from it and passed a barrier;
- a call's last step has no barrier: the next call's first barrier comes before its first sum.

Sums are added in the order of ranks, so every run gives the same result. 16-bit floats are summed in 32 bits and
rounded once on the host and once between hosts.
"""

import ctypes
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from toolkit.rank.dataparallel.reduce.arithmetic import Arithmetic
from toolkit.rank.dataparallel.reduce.partition import LINE_BYTES, chunks, cut, pieces
from toolkit.rank.dataparallel.reduce.shared_memory import HEAD_BYTES, SharedMemoryGroup, signature
from toolkit.rank.dataparallel.reduce.tcp import TcpGroup

# The fastest of 0.5, 1, 2 and 4 MiB, by a tenth, in most of 12 cases (2 and 4 ranks on a host, 2 hosts of 2, 1 to
# 100 MiB, on 2 cores of an EPYC). Larger rows do not fit the caches; smaller ones need more barriers, each of which may
# wait for the scheduler where there are more ranks than cores.
ROW_BYTES = 2 << 20
# Rows that begin at the same offset in their page would compete for the same cache sets.
STRIDE_BYTES = ROW_BYTES + 4096 + LINE_BYTES
SUMS = 3
PAIR = 2  # hosts: one exchange of whole sums moves as many bytes as two of pieces


def bytes_needed(size: int) -> int:
    """Return the bytes of a shared-memory group for *size* ranks: 2 rows for each and 3 for sums."""
    return (2 * size + SUMS) * STRIDE_BYTES


class _FlatArrays:
    """The arrays of one all-reduce, contiguous and of one type, addressed as one sequence of bytes.

    *into*: the arrays for the results, of the same sizes and order; *arrays* themselves if they may be overwritten.
    """

    def __init__(self, arithmetic: Arithmetic, arrays: list[Any], into: list[Any]) -> None:
        self.dtype = arrays[0].dtype
        self._arrays = [arithmetic.flat(array) for array in arrays]
        self._ends = list(accumulate(array.nbytes for array in arrays))
        self._addresses = [arithmetic.address(array) for array in self._arrays]
        self._results = (
            self._addresses if into is arrays else [arithmetic.address(arithmetic.flat(array)) for array in into]
        )
        self.size_bytes = self._ends[-1]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (address, offset from start, count) for each array's bytes in start..stop."""
        for number, begin, end, offset in pieces(self._ends, start, stop):
            yield self._addresses[number] + begin, offset, end - begin

    def result_pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the same for the results."""
        for number, begin, end, offset in pieces(self._ends, start, stop):
            yield self._results[number] + begin, offset, end - begin

    def holder(self, start: int, stop: int) -> Any:
        """Return the part of an array that holds bytes start..stop; None if several arrays hold them."""
        number, begin, end, _ = next(pieces(self._ends, start, stop), (0, 0, 0, 0))
        if end - begin < stop - start:
            return None
        return self._arrays[number][begin // self.dtype.itemsize : end // self.dtype.itemsize]


class HierarchicalAllReduce:
    """The all-reduce over *shared_memory*, and over *tcp* with other hosts (None: there are none)."""

    def __init__(self, shared_memory: SharedMemoryGroup, tcp: TcpGroup | None, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        self._shared_memory = shared_memory
        self._tcp = tcp
        self._hosts = hosts = tcp.size if tcp is not None else 1
        self._view = memoryview(shared_memory.memory)
        self._start = ctypes.c_char.from_buffer(shared_memory.memory)  # Holds the memory as long as it is used.
        self._address = ctypes.addressof(self._start)
        # Receive buffers, one for each other host: its sums of the shard, or of a piece of it.
        share_bytes = ROW_BYTES // shared_memory.size // (1 if hosts == PAIR else hosts)
        self._slot_bytes = (share_bytes // LINE_BYTES + 2) * LINE_BYTES
        self._received = bytearray(self._slot_bytes * hosts)
        self._scratch: Any = None  # Sums of 16-bit floats, before they are rounded.
        self._scratch_length = ROW_BYTES // 2 // shared_memory.size + LINE_BYTES
        self._lag = 2 if tcp is None else 3
        self._sent_bytes = 0

    def allreduce(self, arrays: list[Any], average: bool, number: int, into: list[Any] | None = None) -> int:
        """Put the sums (means) of *arrays*, contiguous and of one floating type, over all ranks into *into*.

        None: into *arrays* themselves. *number* is the number of this all-reduce in its group, as given to
        `SharedMemoryGroup.announce`. Return the bytes that this rank sent: written into shared memory for its local
        peers, and sent to other hosts.

        Raises:
            PeerLost, PeerTimeout, GroupClosed, SizeMismatch: see shared_memory.py and tcp.py.
        """
        flat_arrays = _FlatArrays(self._arithmetic, arrays, arrays if into is None else into)
        description = f"an all-reduce of {flat_arrays.size_bytes:,} bytes"
        spans = chunks(flat_arrays.size_bytes, ROW_BYTES)
        complete_previous: Callable[[str], None] | None = None
        self._sent_bytes = 0
        if self._tcp is not None:
            self._tcp.signature = signature(number, flat_arrays.size_bytes)
        for step in range(len(spans) + self._lag):
            if step >= self._lag:
                self._copy_out(flat_arrays, step - self._lag, spans[step - self._lag])
            if step < len(spans):
                self._copy_in(flat_arrays, step, spans[step])
            if complete_previous is not None:
                complete_previous(description)
                complete_previous = None
            if 0 < step <= len(spans):
                complete_previous = self._sum(flat_arrays, step - 1, spans[step - 1], average)
            if step < len(spans) + self._lag - 1:
                self._shared_memory.barrier(description, number)
        return self._sent_bytes

    def _row_offset(self, number: int, rank: int) -> int:
        return HEAD_BYTES + ((number & 1) * self._shared_memory.size + rank) * STRIDE_BYTES

    def _sums_offset(self, number: int) -> int:
        return HEAD_BYTES + (2 * self._shared_memory.size + number % SUMS) * STRIDE_BYTES

    # memmove is one call without the GIL; torch's copy_ takes 15 % longer and would start OpenMP threads.

    def _copy_in(self, flat_arrays: _FlatArrays, number: int, span: tuple[int, int]) -> None:
        """Copy this rank's chunk into its row; without its own shard if `_sum` reads that from the tensor."""
        row_address = self._address + self._row_offset(number, self._shared_memory.me)
        start, stop = self._cut(span)
        if flat_arrays.holder(span[0] + start, span[0] + stop) is None:
            start = stop = 0
        for begin, end in ((span[0], span[0] + start), (span[0] + stop, span[1])):
            for source, offset, count in flat_arrays.pieces(begin, end):
                ctypes.memmove(row_address + begin - span[0] + offset, source, count)
                self._sent_bytes += count

    def _copy_out(self, flat_arrays: _FlatArrays, number: int, span: tuple[int, int]) -> None:
        sums_address = self._address + self._sums_offset(number)
        for target, offset, count in flat_arrays.result_pieces(*span):
            ctypes.memmove(target, sums_address + offset, count)

    def _cut(self, span: tuple[int, int]) -> tuple[int, int]:
        return cut(span[1] - span[0], self._shared_memory.size, self._shared_memory.me)

    def _sum(
        self, flat_arrays: _FlatArrays, number: int, span: tuple[int, int], average: bool
    ) -> Callable[[str], None] | None:
        """Sum this rank's shard of the chunk; return the function that completes it over hosts, None on one host."""
        start, stop = self._cut(span)
        if start == stop:
            return None
        dtype = flat_arrays.dtype
        rows = [
            self._view_shard(self._row_offset(number, rank), start, stop, dtype)
            for rank in range(self._shared_memory.size)
        ]
        shard_of_this_rank = flat_arrays.holder(span[0] + start, span[0] + stop)
        if shard_of_this_rank is not None:
            rows[self._shared_memory.me] = shard_of_this_rank
        sums = self._view_shard(self._sums_offset(number), start, stop, dtype)
        share = 1 / (self._shared_memory.size * self._hosts) if average else None
        arithmetic = self._arithmetic
        if dtype.itemsize == 2:
            if self._scratch is None:
                self._scratch = arithmetic.accumulator(dtype, self._scratch_length)
            total = self._scratch[: len(sums)]
            arithmetic.copy(rows[0], total)
            for row in rows[1:]:
                arithmetic.add(total, row, total)
            if share is not None:
                arithmetic.scale(total, share)
            arithmetic.copy(total, sums)
        else:
            arithmetic.add(rows[0], rows[1], sums)
            for row in rows[2:]:
                arithmetic.add(sums, row, sums)
            if share is not None:
                arithmetic.scale(sums, share)
        self._sent_bytes += stop - start
        if self._tcp is None:
            return None
        self._sent_bytes += 2 * (self._hosts - 1) * (stop - start) // self._hosts
        sums_offset = self._sums_offset(number)
        view = self._view[sums_offset + start : sums_offset + stop]
        return self._exchange(self._tcp, sums, view) if self._hosts == PAIR else self._gather(self._tcp, sums, view)

    def _exchange(self, tcp: TcpGroup, sums: Any, view: memoryview) -> Callable[[str], None]:
        """Begin to add the other host's sums to *sums* (*view*: its bytes). That host does the same: a + b is b + a."""
        peer, slot = 1 - tcp.me, memoryview(self._received)[: len(view)]
        tcp.start({peer: view}, {peer: slot})

        def complete(description: str) -> None:
            tcp.finish(description)
            self._arithmetic.add(sums, self._view_slot(slot, sums), sums)

        return complete

    def _gather(self, tcp: TcpGroup, sums: Any, view: memoryview) -> Callable[[str], None]:
        """Begin to add up one piece of the sums for all hosts, in their order; completing it also receives the other
        pieces."""
        peers = [peer for peer in range(tcp.size) if peer != tcp.me]
        parts = [cut(len(view), tcp.size, host) for host in range(tcp.size)]
        start, stop = parts[tcp.me]
        slots = [memoryview(self._received)[host * self._slot_bytes :][: stop - start] for host in range(tcp.size)]
        tcp.start({peer: view[slice(*parts[peer])] for peer in peers}, {peer: slots[peer] for peer in peers})

        def complete(description: str) -> None:
            tcp.finish(description)
            if start < stop:
                piece_of_this_rank = sums[start // sums.itemsize : stop // sums.itemsize]
                arithmetic = self._arithmetic
                rows = [
                    piece_of_this_rank if host == tcp.me else self._view_slot(slot, piece_of_this_rank)
                    for host, slot in enumerate(slots)
                ]
                total = arithmetic.accumulator(piece_of_this_rank.dtype, len(piece_of_this_rank))
                arithmetic.copy(rows[0], total)
                for row in rows[1:]:
                    arithmetic.add(total, row, total)
                arithmetic.copy(total, piece_of_this_rank)
            tcp.start(dict.fromkeys(peers, view[start:stop]), {peer: view[slice(*parts[peer])] for peer in peers})
            tcp.finish(description)

        return complete

    def _view_slot(self, slot: memoryview, like: Any) -> Any:
        return self._arithmetic.over(slot, like.dtype, len(like))

    def _view_shard(self, offset: int, start: int, stop: int, dtype: Any) -> Any:
        return self._arithmetic.over(
            self._view[offset + start : offset + stop], dtype, (stop - start) // dtype.itemsize
        )
