"""scripts/setup on a machine of your own: which PyTorch it fetches. The wheels here are empty; no index is asked."""

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project.test_pythons import interpreters

ROOT = Path(__file__).parents[2]
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu\n"

without_gpu = pytest.mark.skipif(
    any(map(os.path.exists, ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"))),
    reason="this machine has a GPU: CUDA's PyTorch fits it",
)


def torch_index(
    wheels: Path, requirement: str = "torch==2.13.0", python: str | Path = sys.executable, device: tuple[str, ...] = ()
) -> str:
    """Return what scripts/torch-index prints where *wheels* is all that *python*'s pip knows of."""
    environ = {
        "PATH": f"{wheels}/bin:/usr/bin:/bin",
        "HOME": str(wheels),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/torch-index", python, requirement, *device],
        env={**environ, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wheel(folder: Path, version: str, *needed: str, tag: str = "py3-none-any") -> None:
    information = f"torch-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {line}\n" for line in needed)
    with zipfile.ZipFile(folder / f"torch-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{lines}")
        archive.writestr(f"{information}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{information}/RECORD", "")


@without_gpu
def test_cudas_pytorch_is_not_taken_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    wheel(tmp_path, "2.13.0", "filelock", 'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"')

    assert torch_index(tmp_path) == CPU_INDEX


def test_with_cpu_a_machines_gpus_do_not_count(tmp_path: Path) -> None:
    wheel(tmp_path, "2.13.0", "nvidia-cudnn-cu13==9.20.0.48")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").touch(0o755)

    assert torch_index(tmp_path) == ""
    assert torch_index(tmp_path, device=("cpu",)) == CPU_INDEX


def test_a_wheel_of_ones_own_for_cpus_goes_on_being_taken(tmp_path: Path) -> None:
    wheel(tmp_path, "2.13.0", "nvidia-cudnn-cu13==9.20.0.48")
    wheel(tmp_path, "2.13.0+cpu", "filelock")

    assert torch_index(tmp_path) == ""


@without_gpu
@pytest.mark.parametrize("version", list(interpreters()) or ["none"])
def test_a_wheel_for_another_python_is_no_wheel_of_ones_own(version: str, tmp_path: Path) -> None:
    python = interpreters().get(version)
    if python is None or subprocess.run([python, "-c", "import pip"], capture_output=True).returncode:
        pytest.skip("no other Python of 3.10 or newer with pip is installed here")
    wheel(tmp_path, "2.13.0", "nvidia-cudnn-cu13==9.20.0.48")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel(tmp_path, "2.13.0+cpu", "filelock", tag=f"{tag}-{tag}-linux_{platform.machine()}")

    assert torch_index(tmp_path, python=python) == CPU_INDEX


def test_where_pip_finds_none_the_choice_is_its_own(tmp_path: Path) -> None:
    assert torch_index(tmp_path) == ""


def test_the_version_that_is_looked_for_is_the_one_that_is_installed() -> None:
    setup = (ROOT / "scripts/setup").read_text()
    (pattern,) = [line for line in setup.splitlines() if line.startswith("torch=")]
    done = subprocess.run(["bash", "-c", f'{pattern}; printf %s "$torch"'], cwd=ROOT, capture_output=True, text=True)

    assert f'"{done.stdout}"' in (ROOT / "pyproject.toml").read_text()
    assert done.stdout.startswith("torch==")
