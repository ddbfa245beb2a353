"""A job of torch_xla that lacks something says so in clear words before a rank is started (checklist 47).

That a torch_xla does not load with the torch that is there, the rank says (test_rank.py).
"""

from pathlib import Path

import pytest

from tests.train.base import Base

PYTORCHXLA = {"sagemaker_pytorch_xla_multi_worker_enabled": "true"}


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """A job of torch_xla whose interpreter finds a torch."""
    base = Base(tmp_path)
    base.hyperparameters(PYTORCHXLA)
    base.program("print('started')\n")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/torch.py").touch()
    return base


def test_without_torch_xla_it_says_what_is_missing_and_where(base: Base) -> None:
    (base.folder / "packages/torch_xla").touch()  # A file of that name is no module.

    done = base.train(PYTHONPATH=str(base.folder / "packages"))

    assert (done.status, done.stdout) == (78, b"")
    assert done.failure is not None
    assert "expected torch_xla in " in done.failure
    assert "pip install torch_xla" in done.failure


def test_on_gpus_it_says_at_once_what_drives_them_today(base: Base) -> None:
    base.executable("nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    (base.code / "requirements.txt").write_text("--no-index\nnothing-of-that-name\n")

    done = base.train(PYTHONPATH=str(base.folder / "packages"))

    assert (done.status, done.stdout) == (78, b"")
    assert done.failure is not None
    assert "found 1 NVIDIA GPU: torch_xla has not supported GPUs since 2.9" in done.failure
    assert "torch_distributed" in done.failure
    assert "nothing-of-that-name" not in done.log


def test_a_name_that_is_none_of_the_compats_is_refused(base: Base) -> None:
    done = base.train(TOOLKIT_COMPAT="torch-xla", PYTHONPATH=str(base.folder / "packages"))

    assert done.status == 78
    assert "torch_xla, found 'torch-xla'" in done.log
