from pathlib import Path

import pytest

from tests.mpi.playing import BEDS, Hosts, python


@pytest.fixture(params=["openmpi4", "openmpi5", "mpich"])
def bed(request: pytest.FixtureRequest) -> str:
    """Each MPI of scripts/beds/mpi."""
    return ready(str(request.param))


@pytest.fixture
def openmpi4() -> str:
    return ready("openmpi4")


def ready(name: str) -> str:
    if not python(name).exists():
        pytest.skip(f"no {BEDS}/{name}: scripts/beds/mpi makes it")
    return name


@pytest.fixture
def hosts(bed: str, tmp_path: Path) -> Hosts:
    """Two hosts of one rank each."""
    return Hosts(tmp_path, bed)


@pytest.fixture
def alone(bed: str, tmp_path: Path) -> Hosts:
    """One host of two ranks."""
    return Hosts(tmp_path, bed, names=("algo-1",), per_host=2)
