"""Bytes per second of the machine's disks and of the container's network, and the room that is left for its output.

/proc/diskstats counts sectors of 512 bytes (https://docs.kernel.org/admin-guide/iostats.html); partitions, loops, RAM
disks and devices made of others (dm, md) are left out, so nothing is counted twice. /proc/net/dev is that of the
container's network namespace; the loopback interface is left out.
"""

import os
from pathlib import Path

from toolkit.monitor.kept_file import KeptFile
from toolkit.monitor.source import BYTES, BYTES_PER_S, NAN, Rate, column
from toolkit.series.column import SampleColumn

_SECTOR = 512
_NO_DISKS = (b"loop", b"ram", b"zram", b"sr", b"fd", b"dm-", b"md")


def disk_bytes(text: bytes, names: frozenset[bytes]) -> tuple[int, int]:
    """Return the bytes read and written so far by the devices *names*, of /proc/diskstats."""
    read = written = 0
    for line in text.splitlines():
        fields = line.split(None, 10)
        if len(fields) > 9 and fields[2] in names:
            read += int(fields[5])
            written += int(fields[9])
    return read * _SECTOR, written * _SECTOR


def network_bytes(text: bytes) -> tuple[int, int]:
    """Return the bytes received and sent so far by all interfaces but the loopback, of /proc/net/dev."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, counts = line.partition(b":")
        if name.strip() != b"lo":
            fields = counts.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


def whole_disks(root: Path) -> frozenset[bytes]:
    """Return the names of the disks, as the kernel lists them in /sys/block."""
    try:
        names = [os.fsencode(entry.name) for entry in (root / "sys/block").iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name for name in names if not name.startswith(_NO_DISKS))


class Traffic:
    """Disk and network traffic, and the free bytes of *output*."""

    def __init__(self, root: str, output: Path, now_s: float) -> None:
        self._disks = whole_disks(Path(root))
        self._diskstats = KeptFile(f"{root}/proc/diskstats")
        self._dev = KeptFile(f"{root}/proc/net/dev")
        self._output = os.fspath(output)
        self._has_disks = bool(self._disks and self._diskstats.read())
        self._has_network = bool(self._dev.read())
        self._rates = [Rate(value, now_s) for value in self._counts()]
        self.columns = (
            *self._pair(self._has_disks, "disk/all/read_bytes_per_s", "disk/all/write_bytes_per_s"),
            *self._pair(self._has_network, "network/all/received_bytes_per_s", "network/all/sent_bytes_per_s"),
            column("disk/output/free_bytes", BYTES),
        )

    @staticmethod
    def _pair(is_measured: bool, *names: str) -> tuple[SampleColumn, ...]:
        return tuple(column(name, BYTES_PER_S) for name in names) if is_measured else ()

    def values(self, now_s: float) -> list[float]:
        """See SampleSource."""
        rates = [rate.per_s(value, now_s) for rate, value in zip(self._rates, self._counts(), strict=False)]
        return [*rates, *[NAN] * (len(self._rates) - len(rates)), self._free_bytes()]

    def _counts(self) -> tuple[int, ...]:
        try:
            disk = disk_bytes(self._diskstats.read(), self._disks) if self._has_disks else ()
            return (*disk, *(network_bytes(self._dev.read()) if self._has_network else ()))
        except (ValueError, IndexError):
            return ()

    def _free_bytes(self) -> float:
        try:
            file_system = os.statvfs(self._output)
        except OSError:
            return NAN
        return float(file_system.f_bavail * file_system.f_frsize)
