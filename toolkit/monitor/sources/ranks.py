"""CPU, memory, threads and disk traffic of each rank of this host, and the CPU of its data loader's workers.

A rank's own counters are read with every sample, those of up to four children once a second, of eight every two
seconds: eight ranks with eight workers each would otherwise cost more than 64 cores.

The memory of a child is what no other process has: a fork has all pages of its parent until one of both writes to them.
The kernel counts that page by page. So it is asked for one child after the other, for a thousandth of a core's time at
most; in between, what a child's memory grows by is its own.

A child may live for less than that. The kernel adds an ended child's CPU time to that of its parent's ended children;
what was not seen while the child lived is counted then.
"""

import math
import os
import time
from operator import sub

from toolkit.monitor.processes import RunningProcess, Stat
from toolkit.monitor.source import BYTES, BYTES_PER_S, NAN, PERCENT, column
from toolkit.series.column import SampleColumn

# CPU times are counted in ticks of 10 ms: in a shorter time, as right after the start, their rate says nothing.
SHORTEST_S = 0.05
CHILDREN_S = 1.0
CHILDREN_PER_S = 4  # Of each rank: more children are read less often.
# Children of children, and the memory of all.
DEEP_S = 5.0
# Of a core's time, for counting the children's own pages.
PAGES_SHARE = 0.001
# Children of any thread; most are started by the main thread, which is looked at every CHILDREN_S.
ALL_THREADS_S = 30.0
DEEPEST = 4
# The states of so many threads are read, of a rank that has more than cores: four of them a second.
MOST_THREADS = 64
THREADS_PER_S = 4
CORES = os.cpu_count() or 1
# The name that torch gives a worker (torch/utils/data/_utils/worker.py, 2.13).
LOADER = b"pt_data_worker"
# Children that Python's multiprocessing starts for itself.
_NO_LOADERS = (b"resource_tracker", b"forkserver")


class _Child:
    """A descendant of a rank. `is_loader`: a worker of its data loader, or another forked copy of the rank.

    `cpu_s`, `reaped_s`: its CPU time, and that of its ended children, as counted so far.
    """

    def __init__(self, process: RunningProcess, stat: Stat, rank_command: bytes, *, counted: bool) -> None:
        self.process = process
        self.lives = True
        self.cpu_s = stat.cpu_s if counted else 0.0
        self.reaped_s = stat.reaped_s if counted else 0.0
        self.disk_bytes = process.disk_bytes() if counted else (0, 0)
        command = process.command()
        # A fork begins with its parent's pages, another program with its own.
        self._own_bytes = 0 if command == rank_command else process.anonymous_bytes()
        self._counted_at_bytes = process.anonymous_bytes()
        self.counted_s = -math.inf
        self.held_bytes = self._own_bytes
        forked = command == rank_command or b"multiprocessing.spawn" in command or b"multiprocessing-fork" in command
        self.is_loader = stat.name.startswith(LOADER) or (forked and not any(name in command for name in _NO_LOADERS))

    def count_pages(self, now_s: float) -> None:
        """Count the pages that no other process has."""
        self.counted_s = now_s
        own_bytes = self.process.private_bytes()
        if own_bytes is not None:
            self._own_bytes, self._counted_at_bytes = own_bytes, self.process.anonymous_bytes()

    def measure_bytes(self) -> int:
        """Return its own memory: as counted last, and what it grew by since."""
        return max(self._own_bytes + self.process.anonymous_bytes() - self._counted_at_bytes, 0)


class _Rank:
    def __init__(self, number: int, pid: int, now_s: float, root: str, started: int) -> None:
        self.number = number
        self.process = RunningProcess(pid, root, started)
        self._root = root
        stat = self.process.read()
        self._cpu_s = stat.cpu_s if stat is not None else 0.0
        self._reaped_s = stat.reaped_s if stat is not None else 0.0
        self._at_s = self._children_at_s = now_s
        self._all_at_s = now_s
        self._deep_at_s = now_s - DEEP_S
        self._command = self.process.command()
        self._children: dict[int, _Child] = {}
        # Until the first look at the children nothing is known of them but that there are none.
        self._children_percent = self._loader_percent = self._loader_workers = NAN
        self._children_bytes = 0
        self._loader_starts = 0
        self._disk_bytes, self._core_wait_s = self.process.disk_bytes(), self.process.core_wait_s()
        self._core_wait_percent = self._running_threads = NAN
        self._disk_bytes_per_s = (NAN, NAN)
        self._threads_at_s = now_s
        # Which part of the CPU time of children that nobody saw is the loader's: as of those that were seen last.
        self._loader_share = 0.0
        # The CPU time of children that were there before this object is not counted.
        if not self.process.ended:
            self._find(DEEPEST, of_all_threads=True, counted=True)
        if not self._children:
            self._children_percent = 0.0

    @property
    def children(self) -> "list[_Child]":
        """Its children that live."""
        return [child for child in self._children.values() if child.lives]

    def values(self, now_s: float) -> tuple[float, ...]:
        """Return the values of the columns; NaN once it has ended."""
        stat = self.process.read()
        if stat is None:
            self._forget(set())
            return (NAN,) * len(_columns(self.number))
        passed_s = now_s - self._at_s
        own_percent = 100.0 * (stat.cpu_s - self._cpu_s) / passed_s if passed_s > SHORTEST_S else NAN
        self._cpu_s, self._at_s = stat.cpu_s, now_s
        if now_s - self._children_at_s >= CHILDREN_S * max(1.0, len(self._children) / CHILDREN_PER_S):
            self._look_at_children(stat, now_s)
        return (
            own_percent + self._children_percent,
            float(stat.resident_bytes + self._children_bytes),
            self._loader_percent,
            self._loader_workers,
            float(self._loader_starts),
            float(stat.threads),
            self._running_threads,
            self._core_wait_percent,
            *self._disk_bytes_per_s,
        )

    def _look_at_children(self, rank: Stat, now_s: float) -> None:
        passed_s = now_s - self._children_at_s
        self._children_at_s = now_s
        of_all = now_s - self._all_at_s >= ALL_THREADS_S
        self._all_at_s = now_s if of_all else self._all_at_s
        deep = of_all or now_s - self._deep_at_s >= DEEP_S
        self._deep_at_s = now_s if deep else self._deep_at_s
        self._find(DEEPEST if deep else 1, of_all_threads=of_all)
        if self._children:
            self._loader_share = sum(child.is_loader for child in self._children.values()) / len(self._children)
        threads = min(rank.threads, MOST_THREADS)
        if rank.threads > CORES and now_s - self._threads_at_s >= threads / THREADS_PER_S:
            self._threads_at_s = now_s
            self._running_threads = float(self.process.running_threads(MOST_THREADS))
        disk_bytes, core_wait_s = self.process.disk_bytes(), self.process.core_wait_s()
        read_bytes, written_bytes = map(sub, disk_bytes, self._disk_bytes)
        self._core_wait_percent = min(100.0 * (core_wait_s - self._core_wait_s) / passed_s, 100.0)
        self._disk_bytes, self._core_wait_s = disk_bytes, core_wait_s
        used_s = loader_s = 0.0
        unseen_s = rank.reaped_s - self._reaped_s
        self._reaped_s = rank.reaped_s
        held_bytes = 0
        gone = set()
        for pid, child in self._children.items():
            stat = child.process.read(of_zombie=True)
            if stat is None:
                gone.add(pid)
                # Its parent's counter has grown by all of its time.
                unseen_s -= child.cpu_s + child.reaped_s
                continue
            grown_s = stat.cpu_s - child.cpu_s
            unseen_s += stat.reaped_s - child.reaped_s
            child.cpu_s, child.reaped_s = stat.cpu_s, stat.reaped_s
            child.lives = stat.state != b"Z"
            used_s += grown_s
            loader_s += grown_s if child.is_loader else 0.0
            disk_bytes = child.process.disk_bytes()
            read_bytes += disk_bytes[0] - child.disk_bytes[0]
            written_bytes += disk_bytes[1] - child.disk_bytes[1]
            child.disk_bytes = disk_bytes
            if deep:
                child.held_bytes = child.measure_bytes()
            held_bytes += child.held_bytes
        self._forget(self._children.keys() - gone)
        self._disk_bytes_per_s = (max(read_bytes, 0) / passed_s, max(written_bytes, 0) / passed_s)
        # Below zero: a parent that ignores SIGCHLD, for which the kernel adds nothing.
        unseen_s = min(max(unseen_s, 0.0), CORES * passed_s)
        used_s += unseen_s
        loader_s += unseen_s * self._loader_share
        self._children_percent = 100.0 * used_s / passed_s
        self._loader_percent = 100.0 * loader_s / passed_s
        self._loader_workers = float(sum(child.is_loader and child.lives for child in self._children.values()))
        self._children_bytes = held_bytes

    def _find(self, depth: int, *, of_all_threads: bool, counted: bool = False) -> None:
        """Add the descendants down to *depth* that are not known yet. *counted*: leave out their CPU time until now."""
        level = [self.process]
        if depth > 1:
            level += [child.process for child in self._children.values()]
        for _ in range(depth):
            descendants = []
            for parent in level:
                for pid in parent.children(of_all_threads=of_all_threads):
                    if pid not in self._children:
                        process = RunningProcess(pid, self._root)
                        stat = process.read()
                        if stat is not None:
                            # A child of the main thread is new since the last look; others may be older.
                            is_known = counted or of_all_threads or parent is not self.process
                            child = _Child(process, stat, self._command, counted=is_known)
                            self._children[pid] = child
                            self._loader_starts += child.is_loader
                            descendants.append(process)
            level = descendants

    def _forget(self, living: set[int]) -> None:
        for pid in self._children.keys() - living:
            self._children.pop(pid).process.close()


class Ranks:
    """The ranks that `train` has started on this host. `add` takes each as it is known."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._ranks: dict[int, _Rank] = {}
        self._pages_due_s = 0.0
        self.columns: tuple[SampleColumn, ...] = ()

    def add(self, number: int, pid: int, now_s: float, started: int = 0) -> None:
        """Measure rank *number*, which runs as *pid*; *started*: since when, in ticks since the boot, 0: not known."""
        self._ranks[number] = _Rank(number, pid, now_s, self._root, started)
        self.columns = tuple(column for rank in sorted(self._ranks) for column in _columns(rank))

    def any_lives(self) -> bool:
        """True while a rank lives."""
        return any(rank.process.read() is not None for rank in self._ranks.values())

    def values(self, now_s: float) -> list[float]:
        """See SampleSource. CPU in percent of one core."""
        if now_s >= self._pages_due_s:
            self._count_pages(now_s)
        return [value for number in sorted(self._ranks) for value in self._ranks[number].values(now_s)]

    def _count_pages(self, now_s: float) -> None:
        """Count the own pages of the child whose pages were not counted for the longest time."""
        children = [child for rank in self._ranks.values() for child in rank.children]
        child = min(children, key=lambda child: child.counted_s, default=None)
        if child is None or child.counted_s > now_s - DEEP_S:
            return
        began_s = time.process_time()
        child.count_pages(now_s)
        self._pages_due_s = max(self._pages_due_s, now_s - DEEP_S) + (time.process_time() - began_s) / PAGES_SHARE


def _columns(rank: int) -> tuple[SampleColumn, ...]:
    return (
        column(f"rank/{rank}/cpu_percent", PERCENT),
        column(f"rank/{rank}/memory_bytes", BYTES),
        column(f"rank/{rank}/loader_cpu_percent", PERCENT),
        column(f"rank/{rank}/loader_workers"),
        column(f"rank/{rank}/loader_starts"),
        column(f"rank/{rank}/threads"),
        column(f"rank/{rank}/running_threads"),
        column(f"rank/{rank}/core_wait_percent", PERCENT),
        column(f"rank/{rank}/disk_read_bytes_per_s", BYTES_PER_S),
        column(f"rank/{rank}/disk_write_bytes_per_s", BYTES_PER_S),
    )
