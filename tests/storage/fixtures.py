"""The servers of storage as fixtures; tests/conftest.py hands them to all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage import servers
from tests.storage.servers import S3, Faulty


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A server of AWS's APIs."""
    pytest.importorskip("obstore")
    if not (servers.BED / ".ready").exists():
        pytest.skip("needs the test bed .beds/storage (scripts/beds/storage)")
    with servers.moto(tmp_path_factory.mktemp("moto")) as s3:
        yield s3


@pytest.fixture
def s3(moto: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """A server of S3; this process's environment leads there, as obstore reads that itself."""
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture
def faulty(moto: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """The same server behind a proxy whose answers fail as a test asks."""
    proxy = Faulty(moto)
    for name, value in proxy.environ.items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture
def bucket(moto: S3, tmp_path: Path) -> str:
    """The URI of a new bucket."""
    return moto.bucket(f"b-{tmp_path.parent.name[-8:]}-{tmp_path.name}".replace("_", "-").lower()[:60].strip("-"))
