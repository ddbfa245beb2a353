"""`toolkit storage`: what is stored of a job, and how to fetch, add and remove it."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolkit import paths
from toolkit.errors import PlatformError, UserError
from toolkit.log import Log

if TYPE_CHECKING:
    from toolkit.commands.storage.stored import Entry, Stored
    from toolkit.storage.store import StorageClient
    from toolkit.storage.uri import Uri

URI = "s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or file:///FOLDER"
WHAT = f"{URI}: a job's TOOLKIT_CHECKPOINT_URI, a checkpoint or file below it, or other objects"
ACTIONS = {
    "ls": "list checkpoints by step and time, the files of one, or objects",
    "get": "fetch all checkpoints, one, or one file",
    "put": "upload a file or a folder as ordinary objects, from which a job can restore",
    "rm": "remove a checkpoint, or all that is stored there",
}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {
        name: actions.add_parser(name, help=help, description=f"{help.capitalize()}.") for name, help in ACTIONS.items()
    }
    made["put"].add_argument("path", metavar="PATH", type=Path, help="a file, or a folder whose content is uploaded")
    for name, action in made.items():
        action.add_argument("uri", metavar="URI", help=URI if name == "put" else WHAT)
    made["ls"].add_argument("--json", action="store_true", help="the same as a JSON list")
    made["get"].add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?", default=Path(), help="where to (default: this folder)"
    )
    made["rm"].add_argument("--yes", action="store_true", help="remove it; without it, only say what would be removed")
    for name, handle in (("ls", _list), ("get", _get), ("put", _put), ("rm", _remove)):
        made[name].set_defaults(handle=handle)


def run(arguments: argparse.Namespace, log: Log) -> int:
    """Do the action; return the exit code.

    Raises:
        UserError: the URI is wrong or names nothing.
        PlatformError: the storage cannot be reached.
    """
    from toolkit.settings import read
    from toolkit.storage.store import StorageClient
    from toolkit.storage.uri import parse

    uri = parse(arguments.uri, "URI")
    store = StorageClient(uri, os.environ, timeout_s=read(os.environ).storage_timeout_s)
    result: int = arguments.handle(arguments, store, uri, log)
    return result


def _list(arguments: argparse.Namespace, store: "StorageClient", uri: "Uri", log: Log) -> int:
    from toolkit.commands.storage import stored

    found = stored.find(store, uri)
    entries = stored.list_entries(found)
    if arguments.json:
        print(json.dumps([msgspec.to_builtins(entry) for entry in entries], indent=2))
        return 0
    for line in _table(entries):
        print(line)
    if not entries:
        log.info(f"{found.root}: hosts {_words(tuple(found.of_hosts))} have stored no files")
    return 0


def _table(entries: "Sequence[Entry]") -> list[str]:
    rows = [("step", "written", "bytes", "files", "hosts", "name")] if entries else []
    for entry in entries:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.mtime_s)) if entry.mtime_s else "-"
        step = "-" if entry.step is None else str(entry.step)
        rows.append(
            (step, written, f"{entry.size_bytes:,}", f"{entry.files:,}", _words(entry.hosts), paths.shown(entry.name))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)] if rows else []
    return [
        "  ".join(
            (row[0].rjust(widths[0]), row[1].ljust(widths[1]), *(row[n].rjust(widths[n]) for n in (2, 3, 4)), row[5])
        )
        for row in rows
    ]


def _words(ranks: "Sequence[int]") -> str:
    listed = sorted(ranks)
    return ",".join(map(str, listed)) if len(listed) <= 4 else f"{listed[0]}..{listed[-1]} ({len(listed)})"


def _get(arguments: argparse.Namespace, store: "StorageClient", uri: "Uri", log: Log) -> int:
    from toolkit.commands.storage import stored
    from toolkit.storage.manifest import DAMAGED_HINT
    from toolkit.storage.restore import TRIES, fetch_files
    from toolkit.storage.store import ReplacedError

    begin_s = time.monotonic()
    folder: Path = arguments.folder.absolute()
    for tries_left in range(TRIES - 1, -1, -1):
        found = stored.find(store, uri)
        above, slash, _ = found.path.rpartition("/")
        files = {path[len(above + slash) :]: file for path, file in found.files.items()}
        try:
            fetched = fetch_files(store, found.root, files, folder)
            break
        except (UserError, ReplacedError) as error:  # A job has replaced meanwhile what was found, or removed it.
            if not tries_left:
                raise PlatformError(f"a part of it cannot be had: {error}", where=str(uri), hint=DAMAGED_HINT) from None
    text = f"fetched {fetched:,} of {_count(found)}, into {folder} in {time.monotonic() - begin_s:.1f} s"
    log.info(text if fetched == len(files) else f"{text}; the others were there")
    return 0


def _put(arguments: argparse.Namespace, store: "StorageClient", uri: "Uri", log: Log) -> int:
    from toolkit.commands.storage import changes, stored

    sizes: list[int] = []
    left_out = changes.put(store, arguments.path, uri, sizes.append)
    log.info(f"uploaded {len(sizes):,} file{'s' * (len(sizes) != 1)}, {sum(sizes):,} bytes, to {uri}")
    if left_out:
        names = ", ".join(map(paths.shown, left_out[:3])) + ", ..." * (len(left_out) > 3)
        log.warning(f"left out {names}: neither a file, nor a folder, nor a link to a file")
    job, _ = stored.find_job(store, uri)
    if job is not None:
        log.warning(f"the job that keeps its checkpoints at {job} does not restore what is beside them")
    return 0


def _remove(arguments: argparse.Namespace, store: "StorageClient", uri: "Uri", log: Log) -> int:
    from toolkit.commands.storage import changes, stored

    if not uri.key:
        raise UserError("expected a key in the bucket, found the bucket as a whole", where=str(uri))
    found = stored.find(store, uri)
    changes.check_removable(store, uri, found)
    if not arguments.yes:
        for line in _table(stored.list_entries(found)):
            print(line)
        sys.stdout.flush()
        raise UserError(f"would remove {_count(found)}", where=str(uri), hint="Add --yes to remove it.")
    changes.remove(store, found, now_s=time.time())
    log.info(f"removed {_count(found)}, from {uri}")
    return 0


def _count(found: "Stored") -> str:
    files = found.files.values()
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {sum(file.size_bytes for file, *_ in files):,} bytes"
