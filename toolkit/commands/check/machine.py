"""Checks this host's disk, memory, limits and GPUs for the job, without writing anything."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from toolkit.commands.check.result import CheckResult, Status
from toolkit.folders import exists, is_dir
from toolkit.job.job import Folders
from toolkit.job.machine import Machine
from toolkit.train.artifacts.scratch import fault

GIB = 1 << 30
# NCCL and PyTorch's DataLoader share memory through /dev/shm. docker's default is 64 MiB; NCCL's manual asks for
# --shm-size=1g --ulimit memlock=-1
# (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11).
ENOUGH_SHM_BYTES = GIB
ENOUGH_DISK_BYTES = GIB
# A DataLoader worker passes each tensor as a file descriptor, and a rank holds several for each peer. The default of
# shells is 1,024.
ENOUGH_FILES = 4096
SHM = Path("/dev/shm")


def check(machine: Machine, folders: Folders, environ: Mapping[str, str], processes: int) -> tuple[CheckResult, ...]:
    """Return the results for this host and a job with *processes* ranks on it."""
    busy = processes > 1 or machine.accelerators > 0
    return (
        *([stops(machine)] if machine.deaf_init else []),
        gpus(machine, environ, processes),
        *disks({"model": folders.model, "output": folders.output, "checkpoints": folders.checkpoints}),
        shared_memory(SHM, busy=busy),
        limits(machine, busy=busy),
        scratch(folders.scratch),
    )


def gpus(machine: Machine, environ: Mapping[str, str], processes: int) -> CheckResult:
    """Return whether the expected accelerators exist and suffice for *processes* ranks."""
    count, kind = machine.accelerators, {"nvidia": "GPU", "neuron": "Neuron core"}.get(machine.accelerator, "")
    if machine.gpu_trouble:
        advice = "Restart or replace the host; CUDA_VISIBLE_DEVICES= (empty) runs the job on the CPU"
        return CheckResult(name="GPUs", status="fail", found=machine.gpu_trouble, advice=advice)
    if machine.notes:
        return CheckResult(
            name="GPUs", status="warn", found="; ".join(machine.notes), advice="Correct the driver's set-up"
        )
    if not count and machine.gpu_uuids:
        finding = f"none of {len(machine.gpu_uuids)}: CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')}"
        return CheckResult(name="GPUs", status="ok", found=finding)
    if not count:
        meant = environ.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("", "void", "none")
        finding = "none, although NVIDIA_VISIBLE_DEVICES asks for some" if meant else "none"
        advice = "Start the container with --gpus all, or on a host with GPUs" if meant else ""
        return CheckResult(name="GPUs", status="warn" if meant else "ok", found=finding, advice=advice)
    finding = f"{count} {kind}{'s' * (count > 1)} for {processes} process{'es' * (processes > 1)}"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        finding += f", CUDA_VISIBLE_DEVICES={visible}"
    if processes > count:
        advice = "Several ranks would share one: lower the processes per host, unless that is meant"
        return CheckResult(name="GPUs", status="warn", found=finding, advice=advice)
    return CheckResult(name="GPUs", status="ok", found=finding)


def stops(machine: Machine) -> CheckResult:
    """Return that a stop of this container does not arrive."""
    return CheckResult(name="stop", status="warn", found=machine.deaf_init)


def disks(folders: Mapping[str, Path]) -> tuple[CheckResult, ...]:
    """Return whether each of *folders* is writable and has free space; folders on one file system share a result."""
    together: dict[tuple[int, Status, str, str], list[str]] = {}
    for name, folder in folders.items():
        parent = _nearest(folder)
        together.setdefault((parent.stat().st_dev, *_room(parent)), []).append(name)
    return tuple(
        CheckResult(name="disk", status=status, found=f"{', '.join(names)}: {finding}", advice=advice)
        for (_, status, finding, advice), names in together.items()
    )


def _room(folder: Path) -> tuple[Status, str, str]:
    room = os.statvfs(folder)
    if not is_dir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        reason = "the file system is read-only" if room.f_flag & os.ST_RDONLY else f"user {os.getuid()} may not write"
        reason = reason if is_dir(folder) else "it is no folder"
        return "fail", f"{folder} cannot be written to ({reason})", "Mount it writable, or change its owner"
    free_bytes = room.f_bavail * room.f_frsize
    if room.f_blocks and not room.f_bavail:
        return "fail", f"no space left in {folder}", "Free some, or mount a larger volume"
    if room.f_files and not room.f_favail:
        return "fail", f"no files can be added in {folder} (it has no inodes left)", "Remove files"
    if room.f_blocks and free_bytes < ENOUGH_DISK_BYTES:
        return "warn", f"{size(free_bytes)} free", "Models and checkpoints need room: mount a larger volume"
    return "ok", f"{size(free_bytes)} free" if room.f_blocks else "writable", ""


def shared_memory(mount: Path, *, busy: bool) -> CheckResult:
    """Return whether *mount* is large enough; *busy*: several processes or GPUs communicate through it."""
    name, advice = "/dev/shm", "Start the container with --shm-size=8g (docker), or mount a memory volume there"
    try:
        room = os.statvfs(mount)
    except OSError as error:
        return CheckResult(name=name, status="warn", found=f"cannot be looked at ({error.strerror})", advice=advice)
    total_bytes, free_bytes = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    finding = f"{size(total_bytes)}, {size(free_bytes)} free"
    if free_bytes >= ENOUGH_SHM_BYTES:
        return CheckResult(name=name, status="ok", found=finding)
    if busy:
        return CheckResult(
            name=name, status="warn", found=f"{finding}: little for NCCL and data loaders", advice=advice
        )
    return CheckResult(name=name, status="ok", found=f"{finding} (data loaders with workers may need --shm-size)")


def limits(machine: Machine, *, busy: bool) -> CheckResult:
    """Return whether the limits of this process, which the script inherits, are high enough."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return judged_limits(files, locked, pins_memory=machine.fabric != "tcp", busy=busy)


def judged_limits(files: int, locked: int, *, pins_memory: bool, busy: bool) -> CheckResult:
    """Return the result for soft limits of open files and of locked bytes (resource.RLIM_INFINITY: no limit)."""
    unlimited = resource.RLIM_INFINITY
    finding = "nofile " + ("unlimited" if files == unlimited else f"{files:,}")
    finding += ", memlock " + ("unlimited" if locked == unlimited else size(locked))
    advice = []
    if busy and files != unlimited and files < ENOUGH_FILES:
        advice.append("--ulimit nofile=65536:65536 (data loaders hand tensors over as descriptors)")
    if pins_memory and locked != unlimited:
        advice.append("--ulimit memlock=-1 (EFA and InfiniBand pin memory)")
    text = f"Start the container with {' and '.join(advice)}" if advice else ""
    return CheckResult(name="ulimits", status="warn" if advice else "ok", found=finding, advice=text)


def scratch(folder: Path) -> CheckResult:
    """Return whether `train` can write temporary files below *folder* and execute programs there."""
    if exists(folder, follow_links=False) and (reason := fault(folder)):
        finding = f"{folder}: expected a folder of this user alone, found {reason}; train will use another"
        return CheckResult(
            name="scratch", status="warn", found=finding, advice="Remove it, or set TMPDIR to another folder"
        )
    parent = _nearest(folder)
    advice = "Let the user of the container write to /tmp, or set TMPDIR to a folder it can write to"
    if not is_dir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        return CheckResult(name="scratch", status="fail", found=f"{parent} cannot be written to", advice=advice)
    room = os.statvfs(parent)
    if room.f_blocks and not room.f_bavail:
        return CheckResult(name="scratch", status="fail", found=f"no space left in {parent}", advice=advice)
    if room.f_flag & os.ST_NOEXEC:
        finding = f"{parent} is mounted noexec: the launcher starts ranks itself, and train knows less of how they end"
        return CheckResult(name="scratch", status="warn", found=finding, advice="Set TMPDIR to a folder without noexec")
    return CheckResult(name="scratch", status="ok", found=str(folder))


def _nearest(folder: Path) -> Path:
    """Return *folder* or, if it does not exist, the nearest parent that does."""
    return next((parent for parent in (folder, *folder.parents) if os.access(parent, os.F_OK)), Path("/"))


def size(count_bytes: int) -> str:
    """Return a number of bytes in a readable form: "64 MiB", "1.5 GiB", "79 GiB"."""
    value, unit = float(count_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f} {unit}" if value < 10 and value != int(value) else f"{value:.0f} {unit}"
