"""Two tests at once: how `pytest -n 2` (pytest-xdist) deals the tests out, and how a test runs alone all the same.

The tests of a file run one after another, in one worker: they may share what a fixture of the module has made. The
tests of a folder in `TOGETHER` share one thing of this machine, such as the container engine. Those of a file in
`APART` share nothing and are dealt out one by one. What takes long comes first, so that no worker idles at the end.

A test marked `alone` measures seconds, or counts what runs on this machine: while it runs, the other workers wait.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

FOLDER = Path(__file__).parent
TOGETHER = ("tests/docker/", "tests/slurm/")
APART = ("tests/faults/test_matrix.py",)
LONG = ("tests/docker/", "tests/faults/", "tests/fuzz/", "tests/horovod/", "tests/mpi/", "tests/walk/")


def unit(nodeid: str) -> str:
    """Return what a test is dealt out with: its folder, its file or itself."""
    for folder in TOGETHER:
        if nodeid.startswith(folder):
            return folder
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


def place(nodeid: str) -> int:
    """Return a test's place in the order: the tests that take long are the first."""
    return next((at for at, folder in enumerate(LONG) if nodeid.startswith(folder)), len(LONG))


class Lanes(LoadScopeScheduling):
    """Deals the tests out in units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


class Turns:
    """The right to run a test beside others, or alone; each worker has a Turns of its own.

    Who wants to run alone waits for what runs, and holds the door: nobody comes in meanwhile.
    """

    def __init__(self) -> None:
        # Locks on what is there anyway: nothing is left behind, and a worker that dies lets go.
        self._door = os.open(FOLDER, os.O_RDONLY)
        self._room = os.open(__file__, os.O_RDONLY)

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)


class Worker:
    """The hooks of a worker."""

    def __init__(self) -> None:
        self._turns = Turns()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: place(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self._turns.taken(alone=item.get_closest_marker("alone") is not None):
            return (yield)
