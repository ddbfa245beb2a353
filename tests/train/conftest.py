from pathlib import Path

import pytest

from tests.train.base import Base


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A base folder with the documents of a one-host job and no code yet."""
    return Base(tmp_path)
