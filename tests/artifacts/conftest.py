from pathlib import Path

import pytest

from toolkit.job.job import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    base = tmp_path / "ml"
    return Folders(
        base=base,
        config=base / "input/config",
        code=base / "code",
        data=base / "input/data",
        model=base / "model",
        output=base / "output",
        output_data=base / "output/data",
        intermediate=base / "output/intermediate",
        checkpoints=base / "checkpoints",
        scratch=tmp_path / "scratch",
    )
