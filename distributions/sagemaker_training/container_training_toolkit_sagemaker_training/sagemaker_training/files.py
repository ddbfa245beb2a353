"""Reading, writing and fetching files and folders."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sagemaker_training import environment, errors
from toolkit import folders, settings
from toolkit.errors import ToolkitError
from toolkit.storage.uri import is_remote
from toolkit.train.source.unpack import is_tar, unpack


def write_success_file() -> None:
    """Write an empty output/success. `train` does it for its own job."""
    write_file(os.path.join(environment.output_dir, "success"), "")


def write_failure_file(failure_msg: str) -> None:
    """Write output/failure, whose first 1,024 characters the platform shows. An existing one is kept."""
    path = os.path.join(environment.output_dir, "failure")
    if not os.path.exists(path):
        write_file(path, failure_msg)


@contextlib.contextmanager
def tmpdir(suffix: str = "", prefix: str = "tmp", directory: str | None = None) -> Iterator[str]:
    """Within the block, there is a temporary folder, whose path this yields."""
    with tempfile.TemporaryDirectory(suffix=suffix, prefix=prefix, dir=directory) as folder:
        yield folder


def write_file(path: str, data: str | bytes, mode: str = "w") -> None:
    """Write *data* to the file *path*; *mode* as open() has it."""
    with open(path, mode) as file:
        file.write(data)


def read_file(path: str, mode: str = "r") -> Any:
    """Return the content of the file *path*; *mode* as open() has it."""
    with open(path, mode) as file:
        return file.read()


def read_json(path: str) -> Any:
    """Return the content of the file *path*, JSON."""
    return json.loads(Path(path).read_bytes())


def download_and_extract(uri: str, path: str) -> None:
    """Put the source at *uri* (a folder, archive, file or URI of storage) into the folder *path*, if that is empty.

    Raises:
        ClientError: the source cannot be read or fetched.
    """
    into = Path(path)
    into.mkdir(parents=True, exist_ok=True)
    if folders.names(into):
        return
    try:
        with tmpdir() as scratch:
            _put(_fetched(uri, Path(scratch)) if is_remote(uri) else Path(uri.removeprefix("file://")), into)
    except ToolkitError as error:
        raise errors.ClientError(str(error)) from error


def s3_download(url: str, dst: str) -> None:
    """Fetch the object at *url* into the file *dst*.

    Raises:
        ClientError: it cannot be fetched.
    """
    try:
        with tmpdir(directory=os.path.dirname(os.path.abspath(dst))) as scratch:
            os.replace(_fetched(url, Path(scratch)), dst)
    except ToolkitError as error:
        raise errors.ClientError(str(error)) from error


def _put(source: Path, into: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, into, dirs_exist_ok=True)
    elif is_tar(source):
        unpack(source, into)
    else:
        shutil.copy2(source, into)


def _fetched(uri: str, into: Path) -> Path:
    from toolkit.storage import download
    from toolkit.storage.store import StorageClient
    from toolkit.storage.uri import parse

    location = parse(uri)
    store = StorageClient(location, dict(os.environ), timeout_s=settings.read(os.environ).storage_timeout_s)
    return download.fetch(store, location, into, lambda _: None)
