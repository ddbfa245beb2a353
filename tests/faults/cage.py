"""Faults of the machine around a host: networks that fall silent, disks that are full, little memory.

Each is a context manager that puts everything back. Those that need root, or a kernel that lets them, say why not
(`network`, `mounts`, `memory` return the reason, "" if they work here).
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

PROXY = Path(__file__).with_name("proxy.py")


class NoCageError(Exception):
    """This machine does not let us; the text says why."""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoCageError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def cannot(try_it: contextlib.AbstractContextManager[object]) -> str:
    """Return why *try_it* does not work on this machine, "" if it does."""
    try:
        with try_it:
            return ""
    except (NoCageError, OSError) as reason:
        return str(reason)


class Network:
    """Hosts in network namespaces of their own, joined by a bridge in another one. Needs root and ip(8).

    Each has a host name of its own, too: Open MPI takes hosts of one name for one.
    """

    def __init__(self, tag: str, count: int) -> None:
        self._bridge = f"{tag}-0"
        self._spaces = [f"{tag}-{number}" for number in range(1, count + 1)]

    def __enter__(self) -> "Network":
        try:
            run("ip", "netns", "add", self._bridge)
            run("ip", "-n", self._bridge, "link", "add", "joins", "type", "bridge")
            run("ip", "-n", self._bridge, "link", "set", "joins", "up")
            for number, space in enumerate(self._spaces, 1):
                self._join(number, space)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for space in (*self._spaces, self._bridge):
            subprocess.run(("ip", "netns", "del", space), capture_output=True)

    def prefix(self, number: int) -> tuple[str, ...]:
        """Return what starts a command inside host *number* (from 1)."""
        command = ("unshare", "--uts", "/bin/sh", "-c", 'hostname "$0" && exec "$@"', f"algo-{number}")
        return ("ip", "netns", "exec", self._spaces[number - 1], *command)

    def address(self, number: int) -> str:
        return f"10.77.0.{number}"

    def cut(self, number: int) -> None:
        """Drop, silently, all that goes to host *number* and comes from it: its own end still looks alive."""
        run("ip", "-n", self._bridge, "link", "set", f"to{number}", "nomaster")

    def heal(self, number: int) -> None:
        """Let it pass again."""
        run("ip", "-n", self._bridge, "link", "set", f"to{number}", "master", "joins")

    def far_apart(self) -> None:
        """Let TCP send again after 0.3 s first, as between hosts 100 ms apart, then after twice as long each time."""
        for space in self._spaces:
            run("ip", "-n", space, "route", "change", "10.77.0.0/24", "dev", "eth0", "rto_min", "300ms")

    def lose_large(self, number: int, above_bytes: int) -> None:
        """Drop, silently, every larger packet to and from host *number*. Needs iptables."""
        space = self._spaces[number - 1]
        run("ip", "-n", space, "link", "set", "eth0", "gso_max_segs", "1")  # Or they would be made of smaller ones.
        for chain in ("INPUT", "OUTPUT"):
            match = ("-m", "length", "--length", f"{above_bytes + 1}:65535")
            run("ip", "netns", "exec", space, "iptables", "-A", chain, *match, "-j", "DROP")

    def _join(self, number: int, space: str) -> None:
        run("ip", "netns", "add", space)
        ends = (f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", self._bridge, "link", "add", *ends)
        run("ip", "-n", self._bridge, "link", "set", f"to{number}", "master", "joins", "up")
        run("ip", "-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", device, "up")


class Proxy:
    """A process that passes a host's link to the leader on; stopped, it passes nothing on and closes nothing."""

    def __init__(self, port: int, target_port: int, *, largest_bytes: int = 0) -> None:
        ports = (str(port), str(target_port), str(largest_bytes))
        self._command: Sequence[str] = (sys.executable, str(PROXY), *ports)

    def __enter__(self) -> "Proxy":
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # It listens.
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def cut(self) -> None:
        self._process.send_signal(signal.SIGSTOP)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Put a small, full file system on *folder*. Needs root."""
    run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))
    try:
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 4096)
        yield
    finally:
        run("umount", "-l", str(folder))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make *folder* read-only, for root, too. Needs root."""
    run("mount", "--bind", str(folder), str(folder))
    try:
        run("mount", "-o", "remount,ro,bind", str(folder))
        yield
    finally:
        run("umount", "-l", str(folder))


class Memory:
    """A control group with little memory, of version 2 or 1. Needs a part of the tree that we may write to."""

    def __init__(self, tag: str, limit_bytes: int) -> None:
        self._tag = tag
        self._limit_bytes = limit_bytes

    def __enter__(self) -> "Memory":
        self._group = self._make()
        return self

    def __exit__(self, *_: object) -> None:
        self._group.rmdir()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what starts a command inside the group."""
        return ("/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(self._group))

    def _make(self) -> Path:
        for parent, limit, swap in _memory_parents():
            group = parent / self._tag
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                (group / limit).write_text(str(self._limit_bytes))
            except OSError:
                group.rmdir()
                continue
            with contextlib.suppress(OSError):
                (group / swap).write_text("0" if limit == "memory.max" else str(self._limit_bytes))
            return group
        raise NoCageError("no memory control group that we may write to")


def _memory_parents() -> Iterator[tuple[Path, str, str]]:
    mounts = {line.split()[2]: line.split()[1] for line in _lines("/proc/mounts") if line.split()[2] == "cgroup2"}
    v1 = [
        line.split()[1]
        for line in _lines("/proc/mounts")
        if " cgroup " in line and "memory" in line.split()[3].split(",")
    ]
    for line in _lines("/proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if "memory" in kinds.split(",") and v1:
            for root in (Path(v1[0] + path), Path(v1[0])):
                yield root, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        elif not kinds and "cgroup2" in mounts:
            for root in (Path(mounts["cgroup2"] + path), Path(mounts["cgroup2"])):
                yield root, "memory.max", "memory.swap.max"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def network() -> str:
    """Return why hosts cannot have networks of their own here, "" if they can."""
    return cannot(Network(f"faults{os.getpid()}t", 1)) if os.geteuid() == 0 else "needs root"


def small_packets() -> str:
    """Return why large packets cannot be dropped here, "" if they can."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        with Network(f"faults{os.getpid()}t", 1) as network_of_one:
            network_of_one.lose_large(1, 900)
    except (NoCageError, OSError) as reason:
        return str(reason)
    return ""


def mounts() -> str:
    """Return why nothing can be mounted here, "" if it can."""
    if os.geteuid() != 0:
        return "needs root"
    with tempfile.TemporaryDirectory() as folder:
        return cannot(full(Path(folder)))


def memory() -> str:
    """Return why memory cannot be limited here, "" if it can."""
    return cannot(Memory(f"faults-{os.getpid()}-t", 64 << 20))
