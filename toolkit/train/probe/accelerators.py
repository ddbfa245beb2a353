"""The accelerators of this machine: NVIDIA GPUs, as `nvidia-smi` lists them, and Neuron cores (Trainium, Inferentia),
as `neuron-ls` does. Each is asked once, and only where it is installed."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import folders
from toolkit.records import Record
from toolkit.train.probe.ask import WITHIN_S, ask, find_program

# Said of a GPU that is there and does not answer, also by an nvidia-smi that lists the others and ends with 0.
LOST = ("Unable to determine the device handle", "GPU is lost")
COMMAND = "nvidia-smi --list-gpus"
# NVIDIA's vendor number, and the classes of GPUs with and without a display, in /sys/bus/pci.
VENDOR, CLASSES = "0x10de", ("0x0300", "0x0302")
INITS = ("systemd", "init")


class NvidiaGpus(Record, frozen=True, kw_only=True):
    """The GPUs that were found. `uuids`: of the GPUs; `instances`: of their MIG instances.

    `trouble`: why a GPU that this host has cannot be used. `notes`: what else went wrong.
    """

    uuids: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    trouble: str = ""
    notes: tuple[str, ...] = ()


class NeuronDevice(Record, frozen=True, kw_only=True):
    """A Neuron device of `neuron-ls -j`; `nc_count` is its number of cores."""

    nc_count: int = 0


def find_gpus(environ: Mapping[str, str], path: str, root: Path, *, within_s: float = WITHIN_S) -> NvidiaGpus:
    """Return the GPUs of this host. MIG instances, listed indented below their GPU, are no GPUs of their own: as
    sagemaker-training 5.1.4."""
    hidden = environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none")
    program = find_program("nvidia-smi", path)
    if program is None:
        devices = 0 if hidden else _devices(root)
        note = (
            f"/dev has {devices} NVIDIA GPU{'s' * (devices > 1)}, but there is no nvidia-smi on PATH to count them "
            "(NVIDIA_DRIVER_CAPABILITIES without utility?): TOOLKIT_PROCESSES_PER_HOST says how many ranks to start"
        )
        return NvidiaGpus(notes=(note,)) if devices else NvidiaGpus()
    answer = ask((program, "--list-gpus"), within_s=within_s)
    text = _plain(answer.text)
    lost = next(
        (line for line in _lines(text + "\n" + _plain(answer.stderr)) if any(word in line for word in LOST)), ""
    )
    lines = text.splitlines()
    uuids = tuple(_uuid(line) for line in lines if line.startswith("GPU "))
    if not answer.trouble and not lost and (uuids or hidden):
        return NvidiaGpus(uuids=uuids, instances=tuple(_uuid(line) for line in lines if line.startswith(" ")))
    words = lost or " ".join(_lines(_plain(answer.stderr) or text)[:2])
    trouble = answer.trouble or ("says" if lost else "lists no GPU")
    message = f"{COMMAND} {trouble}" + (f": {words[:300]}" if words else "")
    # A bare machine may have given its GPUs to virtual machines: it then lists none, which is no failure.
    if not hidden and (lost or _devices(root) or (answer.trouble and _is_on_the_bus(root))):
        return NvidiaGpus(trouble=message)
    return NvidiaGpus(notes=(f"{message}; going on as if there were no GPU",))


def count_neuron_cores(path: str, *, within_s: float = WITHIN_S) -> tuple[int, tuple[str, ...]]:
    """Return (cores, notes): 0 with a note if neuron-ls is on *path* but fails, hangs or says something else."""
    program = find_program("neuron-ls", path)
    if program is None:
        return 0, ()
    answer = ask((program, "-j"), within_s=within_s)
    trouble = answer.trouble
    try:
        devices = () if trouble else msgspec.json.decode(answer.text, type=tuple[NeuronDevice, ...])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        trouble = "said no list of devices"
    if trouble:
        return 0, (f"neuron-ls -j {trouble}; going on as if there were no Neuron core",)
    return sum(device.nc_count for device in devices), ()


def _plain(text: str) -> str:
    """Return *text* without byte order marks and NULs, which wrappers of nvidia-smi write."""
    return text.replace("\ufeff", "").replace("\ufffd\ufffd", "").replace("\0", "")


def _uuid(line: str) -> str:
    return line.rpartition("(UUID: ")[2].partition(")")[0]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _devices(root: Path) -> int:
    """Return the number of GPUs by their device files; a container has those of the GPUs that it was given."""
    try:
        names = folders.names(root / "dev")
    except OSError:
        return 0
    return sum(name.startswith("nvidia") and name[6:].isdigit() for name in names)


def _is_on_the_bus(root: Path) -> bool:
    """True if this is no container, and the machine has a GPU of NVIDIA's: a driver that is not loaded has no files.

    A container sees the bus of its machine, also where it was given none of the GPUs.
    """
    try:
        if (root / "proc/1/comm").read_text().strip() not in INITS:
            return False
        devices = folders.entries(root / "sys/bus/pci/devices")
    except OSError:
        return False
    return any(
        _read(Path(device.path, "vendor")) == VENDOR and _read(Path(device.path, "class"))[:6] in CLASSES
        for device in devices
    )


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
