"""Writes and reads the digests of a job's secrets, with which `toolkit report` masks them.

The file of digests is beside each host's /opt/ml, for its owner alone. The secrets themselves are in no file.
"""

import os
from pathlib import Path

import msgspec

from toolkit.log import Log
from toolkit.masking.digests import Digests, encoded

FILE = ".secrets.json"


def write(host: Path, log: Log) -> None:
    """Write the digests of all secrets that *log* knows into the folder *host*.

    Raises:
        OSError: the file cannot be written.
    """
    digests = log.digests()
    if digests is None:
        return
    fd = os.open(host / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(encoded(digests))


def read(host: Path) -> Digests | None:
    """Return the digests in the folder *host*, None if it has none that can be read."""
    try:
        fd = os.open(host / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            return msgspec.json.decode(file.read(1024 * 1024), type=Digests)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
