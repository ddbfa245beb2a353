"""A folder of an ordinary user, whose permissions count: root may read everything."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def nobodys_folder() -> Iterator[Path]:
    """Yield a new folder. If this process is root's, it and what is made meanwhile are nobody's."""
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others.
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)
