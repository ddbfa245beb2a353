"""Finds and controls descendants through the Linux kernel: prctl(2), ptrace(2) and /proc.

Python has no prctl, so it is called through ctypes. docs/supervision.md says what is missing without ctypes.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PTRACE_DETACH = 17  # include/uapi/linux/ptrace.h
PF_EXITING = 0x4  # include/linux/sched.h
# glibc's malloc.h: options of mallopt(3), and the values that `keep_freed_memory` gives them, in bytes.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
KEPT = {M_TRIM_THRESHOLD: 8 << 20, M_TOP_PAD: 1 << 20, M_MMAP_THRESHOLD: 4 << 20}


def prctl() -> Callable[[int, int], int]:
    """Return prctl(option, argument), or a function that returns -1 if there is none."""
    try:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):
        return lambda _option, _argument: -1
    return lambda option, argument: int(function(option, argument, 0, 0, 0))


def keep_freed_memory() -> None:
    """Let malloc keep up to 8 MiB that are free.

    The relay allocates and frees blocks of 256 KiB. By its default, glibc gives each back to the kernel, which then has
    to fill 64 pages with zeros for the next: a third of the relay's CPU time with 8 ranks, for 1 MiB of memory. Nothing
    changes where the C library has no mallopt (musl).
    """
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        return
    for option, value_bytes in KEPT.items():
        mallopt(option, value_bytes)


def stop_tracing(pid: int, number: int) -> None:
    """Stop tracing the stopped child *pid*: it gets signal *number* (0: none) and continues. See ptrace(2)."""
    try:
        import ctypes

        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    except (ImportError, OSError, AttributeError):
        return  # It stays stopped, as under any parent that does not trace.
    ptrace(PTRACE_DETACH, ctypes.c_long(pid), None, ctypes.c_long(number))


class ProcessStat(NamedTuple):
    """A process in /proc. `start` (clock ticks since boot) and pid together identify it. `session`: the pid of the
    process that began its session."""

    parent: int
    session: int
    start: int


def read_processes() -> dict[int, ProcessStat]:
    """Return all living processes by pid, without zombies, from one scan of /proc."""
    processes = {int(name): read_process(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: process for pid, process in processes.items() if process is not None}


def read_process(pid: int) -> ProcessStat | None:
    """Return the living process *pid*, None if it does not live."""
    fields = stat_fields(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return ProcessStat(parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]))


def pending_signals(pid: int) -> set[int]:
    """Return the pending signals of a process, which it blocks; none if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            masks = [int(line.split()[1], 16) for line in status if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return set()
    return {number for number in range(1, 65) for mask in masks if mask >> (number - 1) & 1}


def descendants(root: int) -> set[int]:
    """Return the pids of all living processes below *root*."""
    return descendants_of({root}, read_processes())


def descendants_of(roots: Iterable[int], processes: Mapping[int, ProcessStat]) -> set[int]:
    """Return the pids of those of *processes* that descend from *roots*."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    pids: set[int] = set()
    ahead = list(roots)
    while ahead:
        for pid in children.get(ahead.pop(), ()):
            if pid not in pids:
                pids.add(pid)
                ahead.append(pid)
    return pids


def own_children() -> set[int]:
    """Return the pids of this process's children, unreaped ones included; at least one if any descendant lives.

    This process is a subreaper, so every living descendant is at every moment a child of this process or below one. So
    an empty list of children means that no descendant lives, where a scan of /proc can miss a process that forks and
    exits meanwhile. The kernel appends to the list, and only this process's own wait removes from it: one read has
    every child that existed before. A kernel without the list (CONFIG_PROC_CHILDREN) gets two scans in a row instead.
    """
    pid = os.getpid()
    pids: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as children:
                pids |= {int(child) for child in children.read().split()}
    except FileNotFoundError:
        return descendants(pid) or descendants(pid)
    return pids


def find_marked(marker: bytes) -> set[int]:
    """Return the pids of all processes that were started with *marker* ("NAME=value") in their environment."""
    pids = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if marker in environ.read().split(b"\0"):
                    pids.add(int(name))
        except OSError:
            pass  # It is gone, or belongs to another user.
    return pids


def is_exiting(pid: int) -> bool:
    """Return True if a process is exiting, so that no signal changes how it ends.

    That holds from before its sockets close, which its peers notice, until it is reaped. On a busy machine this may
    take a while.
    """
    fields = stat_fields(pid)
    return bool(fields) and bool(int(fields[6]) & PF_EXITING)


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the state on; an empty list if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
