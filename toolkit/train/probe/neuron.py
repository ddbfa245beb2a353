"""Neuron cores (Trainium, Inferentia), as `neuron-ls` lists them: asked once, and only where it is installed."""

import msgspec

from toolkit.records import Record
from toolkit.train.probe.ask import WITHIN_S, ask, find_program


class Device(Record, frozen=True, kw_only=True):
    """A Neuron device of `neuron-ls -j`; `nc_count` is its number of cores."""

    nc_count: int = 0


def count_cores(path: str, *, within_s: float = WITHIN_S) -> tuple[int, tuple[str, ...]]:
    """Return (cores, notes): 0 with a note if neuron-ls is on *path* but fails, hangs or says something else."""
    program = find_program("neuron-ls", path)
    if program is None:
        return 0, ()
    answer = ask((program, "-j"), within_s=within_s)
    trouble = answer.trouble
    try:
        devices = () if trouble else msgspec.json.decode(answer.text, type=tuple[Device, ...])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        trouble = "said no list of devices"
    if trouble:
        return 0, (f"neuron-ls -j {trouble}; going on as if there were no Neuron core",)
    return sum(device.nc_count for device in devices), ()
