"""Folders that are hard to walk: too deep for any path, or not to be read."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def unlistable(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int = errno.EIO) -> None:
    """Let every listing of *folder* fail."""
    scandir = os.scandir

    def failing(path: str) -> object:
        if Path(path) == folder:
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)


def unlookable(monkeypatch: pytest.MonkeyPatch, path: Path, number: int = errno.EIO) -> None:
    """Let every look at *path* and at what is below it fail."""
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def failing(it: object, *more: object, real: Callable[..., object] = real, **how: object) -> object:
            if isinstance(it, str | os.PathLike) and Path(os.fspath(it)).is_relative_to(path):
                raise OSError(number, os.strerror(number), os.fspath(it))
            return real(it, *more, **how)

        monkeypatch.setattr(os, name, failing)


def make_levels(top: Path, names: Iterable[str]) -> None:
    """Make a folder of each of *names*, each in the one before it, the first one in *top*."""
    fd = os.open(top, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def as_ordinary_user(program: str, *words: Path) -> subprocess.CompletedProcess[str]:
    """Run *program*, which has `sys`, without root's right to read and change every file."""
    without = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner") if os.geteuid() == 0 else ()
    if without and not shutil.which("setpriv"):
        pytest.skip("no setpriv (util-linux)")
    argv = (*without, sys.executable, "-c", f"import sys\n{program}", *words)
    return subprocess.run(argv, capture_output=True, text=True)
