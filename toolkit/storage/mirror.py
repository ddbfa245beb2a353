"""Uploads the files of a folder as they appear: output/intermediate while the job runs (sagemaker_s3_output).

A file is uploaded once it has not changed for SETTLE_S, and again after each change, under its own path. Nothing is
deleted in storage, and no object is replaced by a part of a file. One file that cannot be read, or that storage
refuses, costs no other: it is tried again, after all others. At most one file is uploaded at a time, in parts, so
memory stays bounded and storage that fails or is slow only delays uploads.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolkit import paths
from toolkit.records import Record, encode
from toolkit.storage.download import Note
from toolkit.storage.scan import FileState, FolderScan, scan
from toolkit.storage.still import StableSince
from toolkit.storage.store import StorageClient, StorageRefusedError, UnreadableError
from toolkit.storage.uri import Uri

SETTLE_S = 1.0
FOLDER = "."
# Storage that refuses the first so many files may refuse them all: the rest waits for the next look.
MOST_REFUSED = 20


class _State(Record, frozen=True, kw_only=True):
    """The results of earlier looks, by the text of each path: uploaded files, and the reasons for refused ones."""

    uploaded: dict[str, FileState] = {}
    refused: dict[str, str] = {}


class Mirror:
    """The folder *folder* and its place *root* in storage. *state*: a file that tells a later process what is there.

    `unreadable`: why files and folders could not be read at the last look, by path; FOLDER: the folder itself.
    `refused`: why storage did not take files, by path, in the order of their last tries. *steady_s*: a clock that
    only goes on.
    """

    def __init__(
        self,
        store: StorageClient,
        root: Uri,
        folder: Path,
        state: Path,
        note: Note,
        *,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._root, self._folder, self._state, self._note = store, root, folder, state, note
        self._still = StableSince(steady_s)
        self.unreadable: dict[str, str] = {}
        self._left_out: dict[str, str] = {}
        try:
            earlier = msgspec.json.decode(state.read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            earlier = _State()  # Nothing yet; or all is uploaded once more.
        self._uploaded = earlier.uploaded
        self.refused = {paths.from_text(path): reason for path, reason in earlier.refused.items()}

    def upload_settled(self, now_s: float) -> bool:
        """Upload the files that have changed and settled at *now_s*, since the epoch; return True if any were."""
        return self._upload(now_s - SETTLE_S)

    def finish(self) -> bool:
        """Upload all files that have changed; return True if any were."""
        return self._upload(None)

    def left_out(self) -> dict[str, str]:
        """Return the files and folders whose newest content `finish` did not bring into storage, and why."""
        return dict(self._left_out)

    def _upload(self, before_s: float | None) -> bool:
        """Upload what has changed, of files that have been the same for SETTLE_S, or whose entry's last change was
        before *before_s*; None: all.

        Raises:
            PlatformError: the storage cannot be reached, or takes nothing.
        """
        folder_scan = scan(self._folder)
        self.unreadable = folder_scan.unreadable | ({FOLDER: folder_scan.fault} if folder_scan.fault else {})
        changing: dict[str, str] = {}
        new = self._new(folder_scan, before_s)
        refused_anew = refused_again = 0
        for count, (path, state) in enumerate(new.items(), 1):
            try:
                self._store.upload(self._root.below(paths.to_key(path)).key, self._folder / path, state, self._note)
            except UnreadableError as error:
                if not error.is_gone:
                    (changing if error.has_changed else self.unreadable)[path] = error.message
                continue
            except StorageRefusedError as error:
                is_known = self.refused.pop(path, None) is not None
                self.refused[path] = error.message  # The last: others are tried before it.
                refused_anew += not is_known
                refused_again += is_known
                if refused_anew == count == MOST_REFUSED:
                    self._keep_state()
                    raise
                if refused_again == MOST_REFUSED:
                    break
                continue
            self.refused.pop(path, None)
            self._uploaded[paths.to_text(path)] = state
            self._keep_state()
        if refused_anew or refused_again:
            self._keep_state()
        self._left_out = changing | self.unreadable | self.refused
        return bool(new)

    def _new(self, scan: FolderScan, before_s: float | None) -> dict[str, FileState]:
        """Return the files of *scan* that are to be uploaded, by path; those that were refused before are the last, in
        the order of their tries."""
        changed = {
            path: (state, before_s is None or entry.changed_s <= before_s)
            for entry in scan.entries.values()
            for path, state in entry.files.items()
            if not state.link and self._uploaded.get(paths.to_text(path)) != state
        }
        self._still.update({path: state for path, (state, _) in changed.items()})
        self.refused = {path: reason for path, reason in self.refused.items() if path in changed}
        settled = [path for path, (_, is_old) in changed.items() if is_old or self._still.is_unchanged(path, SETTLE_S)]
        tries = {path: number for number, path in enumerate(self.refused, 1)}
        return {path: changed[path][0] for path in sorted(settled, key=lambda path: tries.get(path, 0))}

    def _keep_state(self) -> None:
        part = self._state.with_name(f"{self._state.name}.new")
        try:
            refused = {paths.to_text(path): reason for path, reason in self.refused.items()}
            part.write_bytes(encode(_State(uploaded=self._uploaded, refused=refused)))
            part.replace(self._state)
        except OSError:
            pass  # A full disk: the next process uploads it once more.
