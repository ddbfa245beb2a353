"""Pure: which of a host's GPUs CUDA shows to the job, as CUDA_VISIBLE_DEVICES says.

The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"; torch/cuda/__init__.py has the same,
torch 2.13): entries are indices, or beginnings of UUIDs; the first one that names no device hides itself and all that
follow ("-1", "NoDevFiles", a blank); one that is named twice hides all. Of MIG instances CUDA shows a process one.
"""

import re

from toolkit.records import Record


class Visible(Record, frozen=True, kw_only=True):
    """`count`: the devices that a process of the job sees. `doubt`: what is wrong with the variable, "" if nothing."""

    count: int
    doubt: str = ""


def visible(text: str, gpus: tuple[str, ...], instances: tuple[str, ...]) -> Visible:
    """Return what CUDA_VISIBLE_DEVICES=*text* shows of *gpus* and of MIG *instances*, given by their UUIDs.

    >>> visible("4,5", ("GPU-a",) * 8, ()).count, visible("", ("GPU-a",), ()).count
    (2, 0)
    """
    entries = [entry.strip() for entry in text.split(",")]
    if entries[0].startswith("MIG-"):
        is_known = _uuid(entries[0], instances) is not None or entries[0].startswith("MIG-GPU-")
        return Visible(count=1) if is_known else Visible(count=0, doubt=f"this host has no instance {entries[0][:60]}")
    chosen: list[int] = []
    for entry in entries:
        number = _uuid(entry, gpus) if entry.startswith("GPU-") else _index(entry)
        if number is None or not 0 <= number < len(gpus):
            hides = entry in ("", "NoDevFiles") or (number is not None and number < 0)
            doubt = "" if hides else f"this host has no GPU {entry[:60]}, and CUDA ignores what follows it"
            return Visible(count=len(chosen), doubt=doubt)
        if number in chosen:
            return Visible(count=0, doubt=f"GPU {entry[:60]} is named twice, and CUDA shows none then")
        chosen.append(number)
    return Visible(count=len(chosen))


def hides_all(text: str) -> bool:
    """True if CUDA_VISIBLE_DEVICES=*text* hides every GPU, whatever the host has: "", "-1", "NoDevFiles"."""
    first = text.split(",")[0].strip()
    return first in ("", "NoDevFiles") or (_index(first) or 0) < 0


def _index(entry: str) -> int | None:
    """Return the number at the beginning of *entry*, as C's strtol; None without one."""
    number = re.match(r"[+-]?[0-9]{1,9}", entry)
    return int(number[0]) if number else None


def _uuid(entry: str, uuids: tuple[str, ...]) -> int | None:
    """Return the place of the only one of *uuids* that begins with *entry*."""
    places = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return places[0] if len(places) == 1 else None
