"""What only the Linux kernel can promise about descendants, asked for through prctl(2).

ctypes is used because Python has no prctl of its own; where it is missing, the promises are kept as well as they can be
without it (docs/supervision.md).
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PTRACE_DETACH = 17  # include/uapi/linux/ptrace.h
PF_EXITING = 0x4  # include/linux/sched.h


def prctl() -> Callable[[int, int], int]:
    """Return prctl(option, argument), or a function that answers -1 where there is none."""
    try:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).prctl
    except (ImportError, OSError, AttributeError):
        return lambda _option, _argument: -1
    return lambda option, argument: int(function(option, argument, 0, 0, 0))


def release(pid: int, number: int) -> None:
    """Trace the stopped child *pid* no longer: it gets signal *number* (0: none) and runs on. ptrace(2)."""
    try:
        import ctypes

        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    except (ImportError, OSError, AttributeError):
        return  # It stays stopped, as under any other parent that does not know of it.
    ptrace(PTRACE_DETACH, ctypes.c_long(pid), None, ctypes.c_long(number))


class Seen(NamedTuple):
    """A process of the kernel's table. `start`, in clock ticks since the boot, and its pid name it for good; `session`:
    the pid of the process that began it."""

    parent: int
    session: int
    start: int


def table() -> dict[int, Seen]:
    """Return all living processes (zombies are not living) by pid, by one walk over /proc."""
    found = {int(name): seen(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def seen(pid: int) -> Seen | None:
    """Return the living process *pid*, None if there is none."""
    fields = stat_fields(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Seen(parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]))


def pending(pid: int) -> set[int]:
    """Return the signals that a process was sent and has not taken, since it blocks them; none if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            masks = [int(line.split()[1], 16) for line in status if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return set()
    return {number for number in range(1, 65) for mask in masks if mask >> (number - 1) & 1}


def descendants(root: int) -> set[int]:
    """Return the pids of all living processes below *root*."""
    return below({root}, table())


def below(roots: Iterable[int], processes: Mapping[int, Seen]) -> set[int]:
    """Return the pids of those of *processes* that stand below *roots*."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    ahead = list(roots)
    while ahead:
        for pid in children.get(ahead.pop(), ()):
            if pid not in found:
                found.add(pid)
                ahead.append(pid)
    return found


def own_children() -> set[int]:
    """Return the pids of this process's children, those not yet reaped too, at least one if any descendant lives.

    This process is a subreaper, so whatever lives below it has, at every moment, a child of it above itself or is one.
    The list of children answers for all descendants, where a walk over /proc can miss a process that forks and exits
    meanwhile. The kernel adds to the end of the list and only our own wait takes from it: one read sees every child
    that was there before it. Where the kernel has no such list (CONFIG_PROC_CHILDREN), two walks in a row stand for it.
    """
    pid = os.getpid()
    found: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as children:
                found |= {int(child) for child in children.read().split()}
    except FileNotFoundError:
        return descendants(pid) or descendants(pid)
    return found


def marked(marker: bytes) -> set[int]:
    """Return the pids of all processes that were started with *marker* ("NAME=value") in their environment."""
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                if marker in environ.read().split(b"\0"):
                    found.add(int(name))
        except OSError:
            pass  # Gone, or another user's.
    return found


def is_exiting(pid: int) -> bool:
    """Return True if a process is on its way out, whatever is sent to it: from before its sockets close, which its
    peers see, until it has been reaped. On a busy machine that may take a while."""
    fields = stat_fields(pid)
    return bool(fields) and bool(int(fields[6]) & PF_EXITING)


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the state on, none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
