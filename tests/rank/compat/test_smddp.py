"""The old names: there when they are asked for, behind everything that is installed, and not otherwise."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

NAME = "smdistributed.dataparallel"


def python(code: str, *path: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run *code* with *path* in front, through the rank hook."""
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, (HOOK, *path))), **more}
    argv = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)


def build_compat_path(*names: str) -> str:
    return ":".join(str(FOLDER / name) for name in names)


def test_without_being_asked_for_no_old_name_can_be_found() -> None:
    completed = python("import importlib.util as u; print(u.find_spec('smdistributed'))")

    assert (completed.stdout, completed.stderr) == ("None\n", "")


def test_asked_for_they_are_the_last_place_that_is_looked_at() -> None:
    completed = python("import sys; print(sys.path[-1])", TOOLKIT_COMPAT_PATH=build_compat_path("smddp"))

    assert (completed.stdout, completed.stderr) == (f"{FOLDER}/smddp\n", "")


@pytest.mark.parametrize("is_package", [True, False], ids=["a package", "a namespace"])
def test_a_real_library_of_the_name_wins(tmp_path: Path, is_package: bool) -> None:
    real = tmp_path / "smdistributed/dataparallel"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("start_profiler = 'real'\n")
    if is_package:
        (real.parent / "__init__.py").touch()

    completed = python(
        f"import {NAME} as one; print(one.start_profiler)", tmp_path, TOOLKIT_COMPAT_PATH=build_compat_path("smddp")
    )

    assert (completed.stdout, completed.stderr) == ("real\n", "")


def test_the_package_of_both_halves_is_imported_in_an_image_without_torch() -> None:
    code = f"import sys; sys.modules['torch'] = None; import {NAME} as one; print(one.__name__)"

    completed = python(code, TOOLKIT_COMPAT_PATH=build_compat_path("smddp"))

    assert (completed.stdout, completed.stderr) == (f"{NAME}\n", "")


def test_the_exceptions_are_classes_as_sagemaker_training_collects_them() -> None:
    code = f"from {NAME} import exceptions as e; print([n for n in dir(e) if isinstance(getattr(e, n), type)])"

    completed = python(code, TOOLKIT_COMPAT_PATH=build_compat_path("smddp"))

    assert (completed.stdout, completed.stderr) == ("['SMDDPError', 'SMDDPNotInitializedError']\n", "")


@pytest.mark.parametrize("kind", ["SINGLENODE", "HOMOGENEOUS"])
@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
def test_a_rank_finds_its_local_rank_under_awss_name(kind: str, name: str) -> None:
    """Hugging Face's Trainer: device_ids=[int(os.getenv("SMDATAPARALLEL_LOCAL_RANK"))]."""
    code = "import os; print(os.getenv('SMDATAPARALLEL_LOCAL_RANK'))"
    of_smddp = {f"SMDATAPARALLEL_USE_{kind}": "1", name: "3"}

    assert python(code, **of_smddp).stdout == "3\n"
    assert python(code, **of_smddp, SMDATAPARALLEL_LOCAL_RANK="7").stdout == "7\n"
    assert python(code, **{name: "3"}).stdout == "None\n"


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="not installed: torch")
def test_importing_the_backend_twice_registers_it_once_and_joins_nothing() -> None:
    code = (
        "import importlib, torch.distributed as dist\n"
        f"import {NAME}.torch.torch_smddp as one\n"
        "made = dist.Backend._plugins['SMDDP'].creator_fn\n"
        "importlib.reload(one)\n"
        "print(dist.Backend._plugins['SMDDP'].creator_fn is made, dist.is_initialized())\n"
    )

    completed = python(code, TOOLKIT_COMPAT_PATH=build_compat_path("smddp"))

    assert (completed.stdout, completed.stderr) == ("True False\n", "")
