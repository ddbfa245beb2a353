from pathlib import Path

import pytest

from tests.walk.base import Base


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A base folder with the documents of a one-host job and no code yet."""
    return Base(tmp_path)


@pytest.fixture(autouse=True)
def _needs_train() -> None:
    if not (Path(__file__).parents[2] / "toolkit/train.py").exists():
        pytest.skip("toolkit.train is not written yet")
