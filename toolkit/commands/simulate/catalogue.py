"""The catalogue of the jobs of `toolkit run`: where each job's folder is, so that commands take its name.

A file for each job folder, below $XDG_STATE_HOME/toolkit/jobs (else ~/.local/state/toolkit/jobs). It holds a name and a
path alone: what is known of a job is in its folder. A folder that was removed or moved is skipped.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import folders, paths
from toolkit.commands.jobs.folders import RUN_MARK
from toolkit.commands.simulate import runner
from toolkit.errors import UserError, did_you_mean
from toolkit.files import read as read_document
from toolkit.job.report import REPORT
from toolkit.records import Record, encode
from toolkit.train.source.files import is_folder, raise_what_may_pass

MOST = 1000  # Entries that are kept; the oldest go.


class CatalogueEntry(Record, frozen=True, kw_only=True):
    """A job of the catalogue. `recorded_s`: when it was started, seconds since the epoch."""

    name: str
    folder: Path
    recorded_s: float


def home(environ: Mapping[str, str]) -> Path | None:
    """Return the catalogue's folder, None without XDG_STATE_HOME and HOME. A relative XDG_STATE_HOME is ignored, as the
    XDG Base Directory Specification 0.8 demands."""
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "toolkit" / "jobs"
    home = environ.get("HOME", "")
    return Path(home) / ".local" / "state" / "toolkit" / "jobs" if home.startswith("/") else None


def record(environ: Mapping[str, str], entry: CatalogueEntry) -> None:
    """Write *entry*; it replaces one of the same folder.

    Raises:
        OSError: the catalogue cannot be written.
    """
    place = home(environ)
    if place is None or _owner(place) != os.geteuid():
        return  # Another user's: sudo with their HOME.
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / f"{hashlib.sha256(os.fsencode(entry.folder)).hexdigest()[:24]}.json"
    fresh = path.with_suffix(f".{os.getpid()}")
    document = encode({"name": entry.name, "folder": entry.folder, "at": entry.recorded_s})
    try:
        fresh.write_bytes(document)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    for old in sorted(folders.matching(place, "*.json", folders.named_elsewhere), key=_written_s)[:-MOST]:
        old.unlink(missing_ok=True)


def entries(environ: Mapping[str, str]) -> tuple[CatalogueEntry, ...]:
    """Return the jobs whose folders are there, the newest first."""
    place = home(environ)
    recorded = [] if place is None else [entry for path in _files(place) if (entry := _entry(path)) is not None]
    present = [entry for entry in recorded if is_job(entry.folder, folders.as_absent)]
    return tuple(sorted(present, key=lambda entry: entry.recorded_s, reverse=True))


def is_job(folder: Path, unreadable: folders.Unreadable) -> bool:
    """Return True if *folder* is a job folder of `toolkit run`. *unreadable* gets the error if that is not known."""
    return any(folders.is_file(folder / name, unreadable) for name in (RUN_MARK, REPORT))


def find(word: str, environ: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder of the job that *word* names: a job folder, or a name in the catalogue.

    Of several jobs with one name, the running one is meant, else the newest.

    Raises:
        UserError: there is no such job, or several with that name run.
    """
    folder = cwd / word
    if word and is_job(folder, raise_what_may_pass):
        return folder.resolve()
    jobs = entries(environ)
    matches = [entry.folder for entry in jobs if entry.name == word]
    running = [folder for folder in matches if runner.state(folder) != "gone"]
    if len(running) > 1:
        names = ", ".join(map(str, running))
        raise UserError(f"{word}: {len(running)} jobs of this name run: {names}", hint="Name the job's folder.")
    if matches:
        return (running or matches)[0]
    if is_folder(folder):
        raise UserError("expected a job folder of `toolkit run`, found another folder", where=str(folder))
    near = did_you_mean(word, [entry.name for entry in jobs])
    raise UserError(
        f"expected the name of a job or its folder, found {word!r}. {near}".rstrip(". "),
        hint="`toolkit jobs` lists the jobs.",
    )


def folder_of(word: str, environ: Mapping[str, str], cwd: Path) -> Path:
    """Return the folder that *word* is, whatever it holds, else that of the job that *word* names.

    Raises:
        UserError: there is neither.
    """
    folder = cwd / word
    return Path(word) if is_folder(folder) else find(word, environ, cwd)


def _files(place: Path) -> list[Path]:
    return [place / name for name in folders.names(place) if name.endswith(".json")]


def _entry(path: Path) -> CatalogueEntry | None:
    try:
        document = msgspec.json.decode(read_document(path))
        return CatalogueEntry(
            name=str(document["name"]),
            folder=Path(paths.from_text(document["folder"])),
            recorded_s=float(document["at"]),
        )
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None  # Removed meanwhile, or not ours.


def _owner(place: Path) -> int:
    """Return the owner of *place*, or of the nearest folder above it that exists."""
    return folders.nearest(place).stat().st_uid


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
