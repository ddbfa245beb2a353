"""The packages that a Python sees, from the metadata that installers leave; nothing is imported."""

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from toolkit import files, folders

# Above what any package's RECORD has: torch 2.13's has 1.3 MB.
RECORD_BYTES = 16 << 20
CHUNK_BYTES = 64 << 10
PLACE = b"direct_url.json,"
ENDINGS = (".dist-info", ".egg-info")


def list_packages(search_path: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({name: "VERSION DIGEST"}, {name: place}) of the packages in the folders of *search_path*.

    DIGEST: the first 16 digits of the SHA-256 of the RECORD, "-" without one. Of a package in two folders the first
    counts, as for an import. *place*: the URL or folder that it was installed from, where that is no index.
    """
    versions: dict[str, str] = {}
    places: dict[str, str] = {}
    buffer = bytearray(CHUNK_BYTES)
    for folder in dict.fromkeys(search_path):
        for entry in _metadata_in(folder):
            stem = entry.name.rpartition(".")[0]
            name, _, version = stem.partition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            if not version or name in versions:
                continue
            if entry.name.endswith(".egg-info"):
                version = version.partition("-py")[0]
            digest, has_place = _digest_record(f"{entry.path}/RECORD", buffer)
            versions[name] = f"{version} {digest}"
            if has_place and (place := _read_place(entry.path)):
                places[name] = place
    return dict(sorted(versions.items())), dict(sorted(places.items()))


def search_path_of(interpreter: str, own_path: Iterable[str], own_interpreter: str, python_path: str) -> list[str]:
    """Return the folders in which *interpreter* looks for packages, with PYTHONPATH=*python_path*.

    *own_path*: sys.path of this process, which *own_interpreter* runs. Another interpreter has the folders of its
    installation.
    """
    first = [folder for folder in python_path.split(os.pathsep) if folder]
    if interpreter == own_interpreter:
        return [*first, *own_path]
    library = Path(interpreter).parent.parent / "lib"
    pythons = folders.matching(library, "python3*", folders.as_absent)
    return [*first, *(str(python / name) for python in pythons for name in ("site-packages", "dist-packages"))]


def _metadata_in(folder: str) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in folders.entries(folder) if entry.name.endswith(ENDINGS)]
    except OSError:
        return []  # A zip file, or no folder: what is imported from there has no metadata here.


def _digest_record(path: str, buffer: bytearray) -> tuple[str, bool]:
    """Return the digest of the RECORD at *path*, "-" if there is none to read, and whether it names a direct_url.json.

    It goes through *buffer*, since fresh memory for each costs more than its digest.
    """
    try:
        fd = files.descriptor(path)
    except OSError:
        return "-", False
    try:
        return _digest(fd, buffer)
    except OSError:
        return "-", False
    finally:
        os.close(fd)


def _digest(fd: int, buffer: bytearray) -> tuple[str, bool]:
    digest, has_place, size_bytes = sha256(), False, 0
    front = len(PLACE)  # The end of the chunk before: PLACE may begin there.
    buffer[:front] = bytes(front)
    chunk = memoryview(buffer)[front:]
    while size := os.readv(fd, (chunk,)):
        size_bytes += size
        if size_bytes > RECORD_BYTES:
            return "-", False
        digest.update(chunk[:size])
        has_place = has_place or buffer.find(PLACE, 0, front + size) >= 0
        buffer[:front] = buffer[size : size + front]
    return digest.hexdigest()[:16] if size_bytes else "-", has_place


def _read(path: str) -> bytes:
    try:
        return files.read(path)
    except OSError:
        return b""


def _read_place(folder: str) -> str:
    """Return the URL or folder in the direct_url.json of a package (PEP 610), "" if there is none."""
    try:
        document = msgspec.json.decode(_read(f"{folder}/direct_url.json"))
        commit = document.get("vcs_info", {}).get("commit_id", "")
        return f"{document['url']}{'@' if commit else ''}{commit}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, KeyError, TypeError):
        return ""
