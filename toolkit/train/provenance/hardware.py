"""Describes the machine below the job: processor, kernel, C library, GPUs, NVIDIA's libraries. It loads none."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from toolkit import files, folders
from toolkit.job.machine import Machine
from toolkit.job.manifest import Hardware

# /proc/cpuinfo repeats itself for each core; a machine of 192 needs 10 ms to write all of it.
CPUINFO_BYTES = 4096
# For each library: the packages of pip that hold it, and the variables of images that name its version.
CUDA = (("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11"), ("CUDA_VERSION",))
NCCL = (("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu11"), ("NCCL_VERSION", "NV_LIBNCCL_PACKAGE_VERSION"))
CUDNN = (
    ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu11"),
    ("CUDNN_VERSION", "NV_CUDNN_VERSION", "NV_CUDNN_PACKAGE_VERSION"),
)


def describe_hardware(
    machine: Machine, packages: Mapping[str, str], environ: Mapping[str, str], root: Path = Path("/")
) -> Hardware:
    """Return what is known of this host. *packages*: as installed.py lists them. *root*: where /proc and /etc are."""
    name = os.uname()
    return Hardware(
        architecture=name.machine,
        cpu=_first_match(rb"^(?:model name|Model|CPU part)\s*:\s*(.+)$", _begin(root / "proc/cpuinfo")),
        cpus=machine.cpus,
        memory_bytes=machine.memory_bytes,
        kernel=name.release,
        system=_first_match(rb'^PRETTY_NAME="?([^"\n]+)', _begin(root / "etc/os-release")),
        libc=_libc(),
        gpus=_gpu_models(machine, root),
        driver=_first_match(rb"Kernel Module.*?\s(\d+\.[\d.]+)", _begin(root / "proc/driver/nvidia/version")),
        cuda=_library_version(CUDA, packages, environ),
        nccl=_library_version(NCCL, packages, environ),
        cudnn=_library_version(CUDNN, packages, environ),
    )


def _gpu_models(machine: Machine, root: Path) -> tuple[str, ...]:
    """Return the model of each of the machine's GPUs, "NVIDIA" for one that the driver does not describe here."""
    if not machine.gpus:
        return ()
    entries = folders.matching(root / "proc/driver/nvidia/gpus", "*", folders.as_absent)
    texts = [_begin(entry / "information") for entry in entries]
    models = {_first_match(rb"^GPU UUID:\s*(\S+)", text): _first_match(rb"^Model:\s*(.+?)\s*$", text) for text in texts}
    return tuple(models.get(uuid) or "NVIDIA" for uuid in machine.gpu_uuids[: machine.gpus])


def _library_version(
    library: tuple[tuple[str, ...], tuple[str, ...]], packages: Mapping[str, str], environ: Mapping[str, str]
) -> str:
    """Return the version of *library*, (its packages, its variables), and what says so."""
    for name in library[0]:
        if name in packages:
            return f"{packages[name].partition(' ')[0]} (package {name})"
    return next((f"{environ[name][:64]} (variable {name})" for name in library[1] if environ.get(name)), "")


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""  # musl


def _begin(path: Path) -> bytes:
    try:
        with files.opened(path) as file:
            return file.read(CPUINFO_BYTES)
    except OSError:
        return b""


def _first_match(pattern: bytes, text: bytes) -> str:
    match = re.search(pattern, text, re.M)
    return match[1].decode("utf-8", "replace").strip() if match else ""
