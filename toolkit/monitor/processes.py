"""CPU time and memory of processes, and who is whose child: /proc/PID/stat and its neighbours (proc_pid_stat(5))."""

import os
from typing import NamedTuple

from toolkit.monitor.kept_file import KeptFile

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """The content of /proc/PID/stat."""

    name: bytes  # Of its program.
    state: bytes  # A letter; "Z": it has ended.
    parent: int  # The pid of its parent.
    cpu_s: float  # Its own CPU time.
    reaped_s: float  # CPU time of the children, and theirs, that it has waited for (cutime, cstime).
    threads: int  # How many it has.
    started: int  # Ticks since the boot: distinguishes it from a later process with its pid.
    resident_bytes: int  # Its memory.


def parse(text: bytes) -> Stat | None:
    """Return what *text*, the content of /proc/PID/stat, says. The name, in brackets, may hold any character."""
    start, end = text.find(b"("), text.rfind(b")")
    fields = text[end + 2 :].split(None, 22)
    if start < 0 or len(fields) < 22:
        return None
    return Stat(
        name=text[start + 1 : end],
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        reaped_s=(int(fields[13]) + int(fields[14])) / TICKS_PER_S,
        threads=int(fields[17]),
        started=int(fields[19]),
        resident_bytes=int(fields[21]) * PAGE_BYTES,
    )


class RunningProcess:
    """One process, read again and again. `ended`: its pid is free, or another process has it."""

    def __init__(self, pid: int, root: str = "/", started: int = 0) -> None:
        """*started*: when it started, in ticks since the boot; 0: it is the process that has the pid now."""
        self.pid = pid
        self._folder = f"{root}/proc/{pid}"
        self._file = KeptFile(f"{self._folder}/stat")
        self._started = started or None
        self.ended = False
        self.read()

    def read(self, *, of_zombie: bool = False) -> Stat | None:
        """Return its state now, None once it has ended; *of_zombie*: once its parent has waited for it, too."""
        stat = None if self.ended else parse(self._file.read())
        if stat is None or (stat.state in b"ZX" and not of_zombie) or self._started not in (None, stat.started):
            self.ended = True
            self._file.close()
            return None
        self._started = stat.started
        return stat

    def anonymous_bytes(self) -> int:
        """Return its memory without pages of files; those that it has from its parent as a fork are among them."""
        fields = _read(f"{self._folder}/statm").split()
        return (int(fields[1]) - int(fields[2])) * PAGE_BYTES if len(fields) > 2 else 0

    def private_bytes(self) -> int | None:
        """Return its memory without pages that another process has as well; None: not known. The kernel walks through
        all of its pages: 17 ms for 1 GiB."""
        text = _read(f"{self._folder}/smaps_rollup")
        sizes = [line.split() for line in text.splitlines() if line.startswith((b"Private_Clean:", b"Private_Dirty:"))]
        return sum(int(fields[1]) for fields in sizes) * 1024 if sizes else None

    def disk_bytes(self) -> tuple[int, int]:
        """Return the bytes that it has had read from and written to disks, 0 if that cannot be known (proc_pid_io(5)).

        Pages count as written when they change, although the kernel may write them later.
        """
        fields = _read(f"{self._folder}/io").split()
        if b"read_bytes:" not in fields or b"write_bytes:" not in fields:
            return 0, 0
        return int(fields[fields.index(b"read_bytes:") + 1]), int(fields[fields.index(b"write_bytes:") + 1])

    def core_wait_s(self) -> float:
        """Return for how long its main thread was ready to run while other threads had the cores; NaN: not known."""
        fields = _read(f"{self._folder}/schedstat").split()
        return int(fields[1]) / 1e9 if len(fields) == 3 else float("nan")

    def running_threads(self, most: int) -> int:
        """Return how many of its first *most* threads run or are ready to."""
        try:
            threads = os.listdir(f"{self._folder}/task")[:most]
        except OSError:
            return 0
        stats = (parse(_read(f"{self._folder}/task/{thread}/stat")) for thread in threads)
        return sum(stat is not None and stat.state == b"R" for stat in stats)

    def command(self) -> bytes:
        """Return its command line, the arguments separated by NUL."""
        return _read(f"{self._folder}/cmdline")

    def children(self, *, of_all_threads: bool = False) -> list[int]:
        """Return the pids of its children: those that its main thread started, or any thread."""
        threads = [str(self.pid)]
        if of_all_threads:
            try:
                threads = os.listdir(f"{self._folder}/task")
            except OSError:
                threads = []
        return [int(pid) for thread in threads for pid in _read(f"{self._folder}/task/{thread}/children").split()]

    def close(self) -> None:
        self._file.close()


def ancestors(pid: int, root: str = "/") -> list[int]:
    """Return the pids of *pid*'s parent, its parent, and so on; empty if it does not live."""
    pids: list[int] = []
    while len(pids) < 64 and (stat := parse(_read(f"{root}/proc/{pid}/stat"))) is not None and stat.parent > 0:
        pid = stat.parent
        pids.append(pid)
    return pids


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)
