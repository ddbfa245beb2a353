"""Uploads the files of a folder as they appear: output/intermediate while the job runs (sagemaker_s3_output).

A file is uploaded once it has not changed for SETTLE_S, and again after each change, under its own path. Nothing is
deleted in storage. At most one file is uploaded at a time, in parts, so memory stays bounded and storage that fails or
is slow only delays uploads.
"""

from pathlib import Path

import msgspec

from toolkit.storage.download import Note
from toolkit.storage.scan import Found, look, scan
from toolkit.storage.store import Store
from toolkit.storage.uri import Uri

SETTLE_S = 1.0


class Mirror:
    """The folder *folder* and its place *root* in storage. *state*: a file that tells a later process what is there."""

    def __init__(self, store: Store, root: Uri, folder: Path, state: Path, note: Note) -> None:
        self._store, self._root, self._folder, self._state, self._note = store, root, folder, state, note
        self._uploaded: dict[str, Found] = {}
        try:
            self._uploaded = msgspec.json.decode(state.read_bytes(), type=dict[str, Found])
        except (OSError, msgspec.DecodeError):
            pass  # Nothing yet.

    def look(self, now_s: float) -> bool:
        """Upload the files that have changed and settled at *now_s*, since the epoch; return True if any were."""
        return self._upload({name for name, entry in scan(self._folder).items() if entry.changed_s > now_s - SETTLE_S})

    def finish(self) -> bool:
        """Upload all files that have changed; return True if any were."""
        return self._upload(set())

    def _upload(self, unsettled: set[str]) -> bool:
        """Upload what has changed, but for entries that are *unsettled*.

        Raises:
            PlatformError: the storage cannot be reached.
        """
        new = {
            path: found
            for name, entry in scan(self._folder).items()
            if name not in unsettled
            for path, found in entry.files.items()
            if not found.link and self._uploaded.get(path) != found
        }
        for path, found in new.items():
            try:
                self._store.upload(self._root.below(path).key, self._folder / path)
            except Exception:
                if look(self._folder / path) is None:
                    continue  # The script has removed it meanwhile.
                raise
            self._note(found.size_bytes)
            self._uploaded[path] = found
            self._state.write_bytes(msgspec.json.encode(self._uploaded))
        return bool(new)
