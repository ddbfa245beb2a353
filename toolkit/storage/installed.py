"""The packages of an interpreter by the metadata that installers leave (PEP 376, PEP 610): which are new, and their
files.

A package counts as installed by the folder NAME-VERSION.dist-info; its RECORD lists its files, also those outside of
site-packages, such as commands. No module of a package is imported.
"""

import csv
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.patterns import lazy
from toolkit.records import Record

ENDINGS = (".dist-info", ".egg-info", ".egg-link")
# Above what any package's RECORD has: torch 2.13's has 1.3 MB.
RECORD_BYTES = 16 << 20
_URL_WITH_USER = lazy(r"://[^/\s@]+@")


class UnfitSetError(Exception):
    """The packages that came cannot be kept apart from those of the image; the text says why."""


class Environment(Record, frozen=True, kw_only=True):
    """The places and facts of an interpreter."""

    prefix: str
    """The folder below which all files of its packages are."""
    folders: tuple[str, ...]
    """The folders into which packages are installed."""
    search_path: tuple[str, ...]
    """The folders in which the interpreter finds packages: those of the image, too."""
    facts: tuple[str, ...]
    """What else decides which packages fit: version, ABI, platform."""


class PackageFile(Record, frozen=True, kw_only=True):
    """A file of a package."""

    path: str
    """Below the interpreter's prefix, without "." and ".."."""
    size_bytes: int
    mode: int
    """Its permissions."""
    mtime_s: int
    """Of its last change, since the epoch, rounded down: compiled files name their source's time so."""


def read_environment() -> Environment:
    """Return the environment of the interpreter that runs this."""
    try:
        release = files.read("/etc/os-release").decode("utf-8", "replace")
    except OSError:
        release = ""
    abi = str(sysconfig.get_config_var("SOABI"))
    libc = " ".join(platform.libc_ver())
    return Environment(
        prefix=sys.prefix,
        folders=tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))),
        search_path=tuple(sys.path),
        facts=(sys.version, sys.executable, abi, sysconfig.get_platform(), libc, release),
    )


def list_names(search_path: Iterable[str]) -> list[str]:
    """Return the metadata of all packages in the folders *search_path*, sorted: folder, name and version.

    Raises:
        OSError: a folder cannot be listed.
    """
    return sorted(
        f"{folder}/{name}" for folder in {*search_path} for name in folders.names(folder) if name.endswith(ENDINGS)
    )


def read_state(places: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the metadata of the packages in the folders *places*, each with its inode and the time of its change.

    Raises:
        OSError: a folder cannot be listed.
    """
    state = {}
    for folder in places:
        for name in folders.names(folder):
            if name.endswith(ENDINGS):
                path = f"{folder}/{name}"
                record = folders.status(f"{path}/RECORD") if name.endswith(".dist-info") else None
                status = record or Path(path).stat()
                state[path] = (status.st_ino, status.st_mtime_ns)
    return state


def find_new(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the metadata folders that are new in *after*.

    Raises:
        UnfitSetError: a package of *before* was removed, replaced or changed, or a new one has no RECORD.
    """
    for path, status in before.items():
        if after.get(path) != status:
            raise UnfitSetError(f"{name_of(path)} of the image was replaced: put the newer one into the image")
    new = sorted(path for path in after if path not in before)
    for path in new:
        if not path.endswith(".dist-info") or not folders.is_file(f"{path}/RECORD"):
            raise UnfitSetError(f"{name_of(path)} was installed without a list of its files")
    return new


def name_of(metadata: str) -> str:
    """Return "NAME VERSION" of a *metadata* folder."""
    return os.path.basename(metadata).rpartition(".")[0].replace("-", " ", 1)


def list_files(metadata: str, prefix: str) -> list[PackageFile]:
    """Return the files of the package whose *metadata* folder this is, as its RECORD names them, below *prefix*.

    Raises:
        UnfitSetError: one is missing, no regular file, or outside of *prefix*; the package is used from its sources, or
            its address holds a user's name or password.
        OSError: one cannot be looked at.
    """
    name = name_of(metadata)
    _check_origin(metadata, name)
    try:
        record = files.read(Path(metadata, "RECORD"), RECORD_BYTES).decode()
    except UnicodeDecodeError:
        raise UnfitSetError(f"{name} has a list of files that is not UTF-8") from None
    found = []
    for row in csv.reader(record.splitlines()):
        if not row or not row[0]:
            continue
        place = os.path.normpath(os.path.join(os.path.dirname(metadata), row[0]))
        path = os.path.relpath(place, prefix)
        if path.startswith("../") or "\n" in path:
            raise UnfitSetError(f"{name} has a file outside of {prefix}: {row[0]}")
        status = folders.status(place, follow_links=False)
        if status is None and path.endswith(".pyc"):
            continue  # Python makes it again.
        if status is None or not stat.S_ISREG(status.st_mode):
            raise UnfitSetError(f"{name} lists {row[0]}, which is {'missing' if status is None else 'no regular file'}")
        mode = stat.S_IMODE(status.st_mode) & 0o777
        found.append(PackageFile(path=path, size_bytes=status.st_size, mode=mode, mtime_s=int(status.st_mtime)))
    return found


def _check_origin(metadata: str, name: str) -> None:
    """Check that the package is no link to its sources, and that its address has no credentials (PEP 610)."""
    path = Path(metadata, "direct_url.json")
    if not folders.is_file(path):
        return
    try:
        origin = msgspec.json.decode(files.read(path), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnfitSetError(f"{name} has a damaged direct_url.json") from None
    editable = origin.get("dir_info")
    if isinstance(editable, dict) and editable.get("editable"):
        raise UnfitSetError(f"{name} is used from its sources (-e)")
    if _URL_WITH_USER.search(str(origin.get("url", ""))):
        raise UnfitSetError(f"{name} names credentials in its direct_url.json")
