"""Fetches of a job in object storage what tells why it ended: its reports, the ends of its logs, its findings."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from toolkit.commands.jobs.evidence import MOST_BYTES
from toolkit.commands.jobs.folders import EXPECTED, MARKS
from toolkit.errors import UserError
from toolkit.job.report import REPORT
from toolkit.storage.download import list_tree
from toolkit.storage.store import StorageClient, StoredObject
from toolkit.storage.uri import Uri
from toolkit.storage.work import run_ordered

TIMEOUT_S = 20.0
NAMES = (REPORT, "outcome.json", "failure", "success", "metrics.jsonl", "findings.jsonl", "hyperparameters.json")
MOST_FILES = 400


def fetch_job(uri: Uri, environ: Mapping[str, str], into: Path) -> None:
    """Fetch the job below *uri* into the folder *into*. Of a larger file only the end comes, at its place.

    Raises:
        UserError: there is no job, or the package obstore is missing.
        PlatformError: the storage cannot be read.
    """
    store = StorageClient(uri, environ, timeout_s=TIMEOUT_S)
    needed = [(stored, name) for stored, name in list_tree(store, uri) if _is_needed(name)]
    if not any(name.rpartition("/")[2] in (*MARKS, REPORT) for _, name in needed):
        raise UserError(f"{EXPECTED}, found other objects", where=str(uri), hint="Name the folder of a job.")
    for _ in run_ordered(partial(_fetch, store, stored, into / name) for stored, name in needed[:MOST_FILES]):
        pass


def _is_needed(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    is_log = file.endswith(".log") and folder.endswith("logs")
    is_stack = file.endswith(".txt") and folder.endswith("data/stacks")
    return file in NAMES or is_log or is_stack


def _fetch(store: StorageClient, stored: StoredObject, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    start = max(0, stored.size_bytes - MOST_BYTES)
    with path.open("wb") as file:
        file.seek(start)
        file.write(store.read(stored, start))
