"""The start of a host until the first step of its ranks: output/monitor/start-up.json.

`train` measures what it does before it starts the ranks, and each rank what it does before its first step
(rank/profiler/import_clock.py); the monitor of the first attempt writes both down.
"""

from collections.abc import Mapping
from pathlib import Path

from toolkit import files
from toolkit.errors import ContractError
from toolkit.records import Record, decode, encode
from toolkit.series.preparation import Preparation

NAME = "start-up.json"
# File systems whose files lie on another machine.
NETWORK_FILESYSTEMS = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.goofys",
        "fuse.mountpoint-s3",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "smb3",
        "wekafs",
    )
)


class ImportedPackage(Record, frozen=True, kw_only=True):
    """A package that a rank imported before its first step."""

    name: str
    took_s: float
    filesystem: str = ""  # Where its file lies, as "ext4" or "nfs4"; empty: not known.


class RankStart(Record, frozen=True, kw_only=True):
    """The time of a rank from the start of its interpreter to its first step."""

    before_s: float  # All of it.
    imports_s: float  # Importing packages.
    group_s: float  # Forming process groups.
    packages: tuple[ImportedPackage, ...] = ()  # Those that took longest, the slowest first.


class HostStart(Record, frozen=True, kw_only=True):
    """The start of a host from the start of `train` to the first step of its ranks."""

    train_s: float = 0.0  # When `train` started, seconds since the epoch; 0: not known.
    preparations: tuple[Preparation, ...] = ()  # In their order.
    ranks: Mapping[int, RankStart] = {}


def read_rank(path: Path) -> RankStart | None:
    """Return what a process wrote to *path*, None if that is damaged or not there."""
    try:
        return decode(files.read(path), RankStart, str(path))
    except (OSError, ContractError):
        return None


def write(folder: Path, start: HostStart) -> None:
    """Write *start* into *folder*.

    Raises:
        OSError: it cannot be written.
    """
    files.replace(folder / NAME, encode(start) + b"\n")


def read(folder: Path) -> HostStart | None:
    """Return what is in *folder*, None where nothing readable is there."""
    try:
        return decode(files.read(folder / NAME), HostStart, NAME)
    except (OSError, ContractError):
        return None
