from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three nodes, shared by the tests: each takes a second to start."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm"), 3) as cluster:
        yield cluster
