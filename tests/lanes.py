"""Several tests at once: how `pytest -n 3` (pytest-xdist) deals the tests out.

The tests of a file run one after another, in one worker: they may share what a fixture of the module has made. The
tests of a folder in `TOGETHER` share one thing: the container engine, a cluster, wheels that a fixture has built for
all of them, or interpreters that have imported torch (tests/forking.py). Those of a file in `APART` share nothing and
are dealt out one by one.

Many tests wait: for containers, heartbeats, patience and other processes. Those of tests/train, tests/commands/simulate
and tests/mpi use 0.46 of a core (an eighth of them, measured on 2 cores). So there are more workers than cores, and
what waits and what computes is dealt out in turn. All others, whose files take seconds, come last, so that no worker
idles at the end.
"""

from collections.abc import Iterable
from itertools import chain, zip_longest

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/docker/",
    "tests/slurm/",
    "tests/distributions/",
    "tests/sdk/",
    "tests/rank/modelparallel/torch/",
    "tests/rank/modelparallel/test_",
)
APART = ("tests/faults/test_matrix.py",)
WAITS = (
    "tests/docker/",
    "tests/slurm/",
    "tests/mpi/",
    "tests/train/test_",
    "tests/storage/",
    "tests/soak/",
    "tests/commands/simulate/",
    "tests/faults/",
)
COMPUTES = (
    "tests/rank/compiler/",
    "tests/rank/modelparallel/",
    "tests/rank/dataparallel/",
    "tests/fuzz/",
    "tests/horovod/",
    "tests/rank/xla/",
    "tests/tensorflow/",
    "tests/jax/",
    "tests/entrypoints/",
    "tests/rank/profiler/",
    "tests/rank/hook/",
    "tests/diagnosis/",
    "tests/distributions/",
    "tests/sdk/",
)


def unit(nodeid: str) -> str:
    """Return what a test is dealt out with: its folder, its file or itself."""
    for folder in TOGETHER:
        if nodeid.startswith(folder):
            return folder
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


def ordered(nodeids: Iterable[str]) -> list[str]:
    """Return *nodeids* in the order in which they are dealt out."""
    units: dict[str, list[str]] = {}
    for nodeid in nodeids:
        units.setdefault(unit(nodeid), []).append(nodeid)
    waits, computes = (_of(folders, units) for folders in (WAITS, COMPUTES))
    in_turn = [name for pair in zip_longest(waits, computes) for name in pair if name is not None]
    return list(chain.from_iterable(units[name] for name in dict.fromkeys([*in_turn, *units])))


def _of(folders: tuple[str, ...], units: Iterable[str]) -> list[str]:
    return [name for folder in folders for name in units if name.startswith(folder)]


class Lanes(LoadScopeScheduling):
    """Deals the tests out in units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


class Worker:
    """The hook of a worker."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests in the order in which they are dealt out."""
        places = {nodeid: place for place, nodeid in enumerate(ordered(item.nodeid for item in items))}
        items.sort(key=lambda item: places[item.nodeid])
