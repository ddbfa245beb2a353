"""Two tests at once: how `pytest -n 2` (pytest-xdist) deals the tests out.

The tests of a file run one after another, in one worker: they may share what a fixture of the module has made. The
tests of a folder in `TOGETHER` share one thing of this machine, such as the container engine. Those of a file in
`APART` share nothing and are dealt out one by one. What takes long comes first, so that no worker idles at the end.
"""

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/docker/", "tests/slurm/")
APART = ("tests/faults/test_matrix.py",)
LONG = ("tests/docker/", "tests/faults/", "tests/fuzz/", "tests/horovod/", "tests/mpi/", "tests/train/")


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


class Worker:
    """The hook of a worker."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests in the order in which they are dealt out."""
        items.sort(key=lambda item: place(item.nodeid))
