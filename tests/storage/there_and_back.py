"""The duties of any storage to the toolkit: a checkpoint folder goes there and comes back."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from toolkit.storage.checkpoints import Checkpoints
from toolkit.storage.restore import restore
from toolkit.storage.store import PIECE_BYTES, StorageClient
from toolkit.storage.uri import parse


def goes_and_comes_back(uri: str, environ: Mapping[str, str], tmp_path: Path) -> None:
    folder, again = tmp_path / "checkpoints", tmp_path / "again"
    (folder / "step 1").mkdir(parents=True)
    (folder / "step 1/ünïcode").write_bytes(os.urandom(2 * PIECE_BYTES + 1))
    (folder / "empty").touch()
    store = StorageClient(parse(uri), environ, timeout_s=20)

    def uploader() -> Checkpoints:
        place = tmp_path / "open.json"
        return Checkpoints(store, parse(uri), folder, rank=0, host="h", open_file=place, note=lambda size: None)

    assert uploader().finish(clean=True, ended_s=time.time())
    assert not uploader().finish(clean=True, ended_s=time.time())
    (folder / "empty").unlink()
    assert uploader().finish(clean=True, ended_s=time.time())
    restore(store, parse(uri), 0, again, lambda size: None)

    done = subprocess.run(["diff", "-r", str(folder), str(again)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    (tmp_path / "large").write_bytes(os.urandom(2 * PIECE_BYTES + 1))
    store.upload("large", tmp_path / "large")
    large = store.find("large")
    assert large is not None
    assert large.size_bytes == 2 * PIECE_BYTES + 1
