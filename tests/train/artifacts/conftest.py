from pathlib import Path

import pytest

from tests.train.launchers.jobs import folders as made
from toolkit.job.job import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return made(tmp_path / "ml", tmp_path / "scratch")
