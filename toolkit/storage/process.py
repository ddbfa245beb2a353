"""The process that transfers files between a host and storage, so that neither `train` nor the script waits for it.

obstore and its threads stay out of `train`. SIGTERM ends it at once: what was sent of a checkpoint is kept as parts
that no manifest names yet, and a later run goes on from them. A byte on standard output for each piece tells `train`
that it makes progress.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from toolkit import paths
from toolkit.errors import InternalError, ToolkitError
from toolkit.exit_codes import TEMPORARY_FAILURE
from toolkit.masking.excerpt import beginning
from toolkit.records import decode, encode
from toolkit.storage import download, installed, package_snapshot, restore
from toolkit.storage.checkpoints import FOLDER, Checkpoints, OvertakenError
from toolkit.storage.config import TransferReply, TransferTask
from toolkit.storage.download import Note
from toolkit.storage.mirror import Mirror
from toolkit.storage.open_entries import OpenEntries
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import Uri, parse

LOOK_S = 2.0
# The pause while storage fails. The log has a line for the first failure, and one for the next success.
AGAIN_S = 15.0
TELL_S = 30.0
# An entry that cannot be read again and again has a line this often.
SAY_AGAIN_S = 600.0
# Lines about others keep this distance.
SAY_PAUSE_S = 60.0
# At the end, what cannot be read is tried again after these pauses: a network file system may be back by then.
READ_AGAIN_S = (0.5, 1.0)
# A look at a folder of very many files takes at most this share of a core.
MOST_SHARE = 0.02


def main(argv: list[str]) -> int:
    """Do what the JSON file *argv*[1] says."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = decode(Path(argv[1]).read_bytes(), TransferTask, argv[1])
    os.nice(5 if task.task == "watch" else 0)
    try:
        answer = _TASKS[task.task](task, os.environ)
    except ToolkitError as error:
        answer = TransferReply(message=error.message, place=error.where, hint=error.hint, exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001 - the outermost level
        answer = TransferReply(message=f"{type(error).__name__}: {error}", exit_code=InternalError.exit_code)
    texts = {name: paths.shown(getattr(answer, name)) for name in ("message", "place", "hint", "log_line")}
    new = task.answer.with_name(f"{task.answer.name}.new")
    new.write_bytes(encode(msgspec.structs.replace(answer, **texts)))
    new.replace(task.answer)
    sys.stdout.flush()
    os._exit(0)  # Threads may still wait for storage.


def _note(size_bytes: int) -> None:  # noqa: ARG001 - what every note takes
    try:
        os.write(1, b".")
    except OSError:
        pass  # `train` no longer listens.


def _unnoted(size_bytes: int) -> None:
    """Note nothing: what runs beside the script writes to the job's console, and nobody waits for it."""


def _fetch(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    uri, folder = parse(task.uri), task.folder
    assert folder is not None
    begin_s = time.monotonic()
    progress = _Progress(task.uri if task.reports_progress else "", begin_s)
    path = download.fetch(StorageClient(uri, environ, timeout_s=task.timeout_s), uri, folder, progress.note)
    size = f", {progress.size_bytes:,} bytes" if task.reports_progress else ""
    return TransferReply(path=path, log_line=f"fetched {task.uri}{size} in {time.monotonic() - begin_s:.1f} s")


class _Progress:
    """Counts what has come, and says so every TELL_S; *uri* "": it says nothing."""

    def __init__(self, uri: str, now_s: float) -> None:
        self._uri, self._reported_s = uri, now_s
        self.size_bytes = 0

    def note(self, size_bytes: int) -> None:
        """A piece has come."""
        self.size_bytes += size_bytes
        _note(size_bytes)
        if self._uri and time.monotonic() > self._reported_s + TELL_S:
            self._reported_s = time.monotonic()
            _say(f"{self._uri}: {self.size_bytes:,} bytes have come so far")


def _restore(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    uri, folder = parse(task.checkpoint_uri), task.checkpoints
    assert folder is not None
    begin_s = time.monotonic()
    store = StorageClient(uri, environ, timeout_s=task.timeout_s)
    files, size_bytes = restore.restore(store, uri, task.rank, folder, _note)
    took_s = time.monotonic() - begin_s
    if not files:
        return TransferReply(log_line=f"{task.checkpoint_uri} has no newer checkpoint files than {folder}")
    count = f"{files:,} file{'s' if files > 1 else ''}, {size_bytes:,} bytes"
    return TransferReply(log_line=f"restored {folder} from {task.checkpoint_uri}: {count}, {took_s:.1f} s")


def _restore_packages(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    uri, begin_s = parse(task.uri), time.monotonic()
    store = StorageClient(uri, environ, timeout_s=task.timeout_s)
    environment = installed.read_environment()
    try:
        found = package_snapshot.restore(store, uri, task.key, environment, task.state, _note)
    except package_snapshot.SnapshotError as error:
        return TransferReply(log_line=f"{uri}: the snapshot of these packages cannot be used: {error}")
    if found is None:
        return TransferReply()
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.written_s))
    line = f"unpacked from {found.place}, as {found.installer} installed them at {at}"
    return TransferReply(
        path=Path(sys.prefix), log_line=f"{_counted(found)} {line}, {time.monotonic() - begin_s:.1f} s"
    )


def _store_packages(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    uri, begin_s = parse(task.uri), time.monotonic()
    store = StorageClient(uri, environ, timeout_s=task.timeout_s)
    environment = installed.read_environment()
    try:
        stored = package_snapshot.store_new(store, uri, task.installer, environment, time.time(), task.state, _note)
    except package_snapshot.SnapshotError as error:
        return TransferReply(log_line=f"{uri} gets no snapshot of these packages: {error}")
    if stored is None:
        return TransferReply()
    line = f"stored for later starts at {stored.place}, {time.monotonic() - begin_s:.1f} s"
    return TransferReply(path=Path(sys.prefix), log_line=f"{_counted(stored)} {line}")


def _counted(packages: package_snapshot.StoredSet) -> str:
    plural = "" if packages.packages == 1 else "s"
    return f"{packages.packages:,} package{plural}, {packages.size_bytes:,} bytes:"


def _watch(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    opened = {name: _Lazily(make) for name, make in _makers(task, environ).items()}
    failed: dict[str, float] = {}
    unreadable = {name: _Troubles(name, "cannot be read", "everything can be read again") for name in opened}
    refused = {name: _Troubles(name, "is refused", "nothing is refused any more") for name in opened}
    open_entries = OpenEntries(task.checkpoints, _open_file(task)) if task.checkpoints is not None else None
    while True:
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        if failed and open_entries is not None:
            _note_open(open_entries)
        for name, lazy_uploader in opened.items():
            if begin_s < failed.get(name, 0.0):
                continue
            try:
                uploader = lazy_uploader.get()
                uploader.upload_settled(time.time())
                unreadable[name].say(uploader.unreadable, begin_s)
                still_refused = uploader.refused if isinstance(uploader, Mirror) else {}
                refused[name].say(still_refused, begin_s)
                if failed.pop(name, None) is not None and not still_refused:
                    _say(f"{name}: uploads work again")
            except Exception as error:  # noqa: BLE001 - storage must not end it, and `finish` tries again
                if name not in failed:
                    _say(f"{name}: {_line(error)}; tried again every {AGAIN_S:g} s")
                failed[name] = time.monotonic() + AGAIN_S
                lazy_uploader.forget()
        cpu_s = time.thread_time() - begin_cpu_s  # An upload takes long, and little of this thread.
        threading.Event().wait(LOOK_S if failed else max(LOOK_S, cpu_s / MOST_SHARE))


def _note_open(open_entries: OpenEntries) -> None:
    """Keep what is being written while storage fails: the script may end before it works again."""
    try:
        open_entries.update()
    except OSError:
        pass  # The next look tries again, and the next upload says it.


class _Lazily:
    """An uploader that is made when it is first used, and made anew after a failure."""

    def __init__(self, make: "Callable[[], Checkpoints | Mirror]") -> None:
        self._make = make
        self._uploader: Checkpoints | Mirror | None = None

    def get(self) -> Checkpoints | Mirror:
        if self._uploader is None:
            self._uploader = self._make()
        return self._uploader

    def forget(self) -> None:
        self._uploader = None


def _makers(task: TransferTask, environ: Mapping[str, str]) -> "dict[str, Callable[[], Checkpoints | Mirror]]":
    """Return what makes the uploader of each folder, by the URI."""
    note = _unnoted if task.task == "watch" else _note
    makers: dict[str, Callable[[], Checkpoints | Mirror]] = {}
    if task.checkpoint_uri and task.checkpoints is not None:
        uri, folder = parse(task.checkpoint_uri), task.checkpoints
        makers[task.checkpoint_uri] = lambda: _checkpoints(task, uri, folder, environ, note)
    if task.intermediate_uri and task.intermediate is not None:
        place, intermediate = parse(task.intermediate_uri), task.intermediate
        state = task.state / "intermediate.json"
        makers[task.intermediate_uri] = lambda: Mirror(
            StorageClient(place, environ, timeout_s=task.timeout_s), place, intermediate, state, note
        )
    return makers


def _checkpoints(task: TransferTask, uri: Uri, folder: Path, environ: Mapping[str, str], note: Note) -> Checkpoints:
    return Checkpoints(
        StorageClient(uri, environ, timeout_s=task.timeout_s),
        uri,
        folder,
        rank=task.rank,
        host=task.host,
        open_file=_open_file(task),
        note=note,
        began_s=task.began_s,
        layout=task.checkpoint_layout,
    )


class _Troubles:
    """Says which entries have a trouble, such as *what* "cannot be read": each once in SAY_AGAIN_S, and *over* when
    none has it any more."""

    def __init__(self, name: str, trouble: str, over: str) -> None:
        self._name, self._what, self._over = name, trouble, over
        self._next_report_s: dict[str, float] = {}
        self._next_s = 0.0
        self._has_open_report = False

    def say(self, reasons: Mapping[str, str], now_s: float) -> None:
        """Say what is new in *reasons*, by entry."""
        new = {
            entry: reason for entry, reason in reasons.items() if now_s > self._next_report_s.get(entry, -SAY_AGAIN_S)
        }
        if new and now_s >= self._next_s:
            self._next_report_s |= dict.fromkeys(new, now_s + SAY_AGAIN_S)
            self._next_s = now_s + SAY_PAUSE_S
            self._has_open_report = True
            text = _with_reason(new, self._what)
            _say(f"{self._name}: {text}; storage keeps what it has of it; tried again every {LOOK_S:g} s")
        elif self._has_open_report and not reasons:
            self._has_open_report = False
            _say(f"{self._name}: {self._over}")


def _with_reason(entries: Mapping[str, str], trouble: str) -> str:
    """Return which *entries*, reasons by name, have the trouble *trouble*, for people."""
    return f"{_listed(entries)} {trouble} ({next(iter(entries.values()))})"


def _listed(names: Iterable[str]) -> str:
    listed = ["the folder itself" if name == FOLDER else paths.shown(name) for name in names]
    return f"{', '.join(listed[:3])}{', ...' if len(listed) > 3 else ''}"


def _open_file(task: TransferTask) -> Path:
    return task.state / "open-checkpoints.json"


def _finish(task: TransferTask, environ: Mapping[str, str]) -> TransferReply:
    failures, lines = [], []
    for name, make in _makers(task, environ).items():
        try:
            uploader = make()
            for pause_s in (*READ_AGAIN_S, 0.0):
                try:
                    _finish_one(uploader, task)
                except OvertakenError as error:
                    if not pause_s:
                        raise
                    lines.append(f"{name}: {_line(error)}")
                    uploader = make()
                    continue
                if not uploader.unreadable or not pause_s:
                    break
                threading.Event().wait(pause_s)
            lines += [f"{name}: {text}" for text in _left_out(uploader)]
        except Exception as error:  # noqa: BLE001 - the other folder is still uploaded
            failures.append(f"{name}: {_line(error)}")
    if failures:
        return TransferReply(message="; ".join((*failures, *lines)), exit_code=TEMPORARY_FAILURE)
    return TransferReply(log_line="; ".join(lines))


def _finish_one(uploader: Checkpoints | Mirror, task: TransferTask) -> None:
    if isinstance(uploader, Mirror):
        uploader.finish()
    else:
        uploader.finish(clean=task.clean, ended_s=task.ended_s)


def _left_out(uploader: Checkpoints | Mirror) -> list[str]:
    """Return a text for each reason for which the newest content of something is not in storage."""
    left = uploader.left_out()
    unreadable = {name: reason for name, reason in left.items() if name in uploader.unreadable}
    refused = uploader.refused if isinstance(uploader, Mirror) else {}
    changed = [name for name, reason in left.items() if reason and name not in unreadable and name not in refused]
    half = [name for name, reason in left.items() if not reason]
    texts = []
    if unreadable:
        texts.append(f"{_with_reason(unreadable, 'cannot be read')}; storage keeps what it had of it")
    if refused:
        texts.append(f"{_with_reason(refused, 'is refused')}; storage keeps what it had of it")
    if changed:
        texts.append(f"{_listed(changed)} changed while it was uploaded; storage keeps what it had of it")
    if half:
        texts.append(
            f"{_listed(half)} may be half written, as the script did not end by itself; storage keeps what it had"
        )
    return texts


def _line(error: Exception) -> str:
    text = str(error) if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"
    return beginning(" ".join(text.split()), 600)


def _say(text: str) -> None:
    sys.stderr.write(f"storage: {text}\n")
    sys.stderr.flush()


_TASKS: dict[str, Callable[[TransferTask, Mapping[str, str]], TransferReply]] = {
    "fetch": _fetch,
    "restore": _restore,
    "watch": _watch,
    "finish": _finish,
    "restore-packages": _restore_packages,
    "store-packages": _store_packages,
}
