"""The partition decision: which module is on which device, and why. One job writes it as JSON, a later one takes it.

The library said that the outcome of partitioning "is saved to a file, which is passed as input to the actual training
job", and published no format: this one is the toolkit's own.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.errors import ContractError
from toolkit.parallelism.tree import Module
from toolkit.records import Record, decode

VERSION = 1
# The file's name below output/data of the job that decided.
FILE = "partition.json"


class Cut(Record, frozen=True, kw_only=True):
    """What crosses from device *source* to device *target* in one forward pass of one microbatch."""

    source: int
    target: int
    bytes: int
    calls: int


class Decision(Record, frozen=True, kw_only=True):
    """An assignment of modules to devices.

    `assignment`: module path -> device (0 to devices - 1); a module that is not named is where its nearest named
    ancestor is. `devices` is the number of partitions, `memory_weight` the weight of memory beside compute (0 to 1).
    `fingerprint`: equal for models of equal module paths, classes and parameter shapes (modelparallel makes it).
    `method`: "tree" (the published one), "contiguous" (the best contiguous split, where it won) or "manual".
    `reason`: one sentence for people, which says by how much it won. `tree`: the measured costs; for "manual" the
    parameters alone.
    `profiled_by`: what measured the costs (framework, version, device kind). `decided`: `digest` of the assignment as
    the method left it, by which an edit is noticed; "" in files of earlier releases.
    """

    version: int = VERSION
    fingerprint: str
    devices: int
    memory_weight: float
    method: str
    reason: str
    assignment: dict[str, int]
    cuts: tuple[Cut, ...] = ()
    tree: Module | None = None
    profiled_by: str = ""
    decided: str = ""

    @property
    def is_edited(self) -> bool:
        """True if `assignment` is not what `method` decided."""
        return bool(self.decided) and self.decided != digest(self.assignment)

    def device_of(self, name: str) -> int:
        """Return the device of the module at the path *name*."""
        while name and name not in self.assignment:
            name = name.rpartition(".")[0]
        return self.assignment.get(name, 0)


def digest(assignment: Mapping[str, int]) -> str:
    """Return a hash of *assignment*, whatever its order."""
    return hashlib.sha256(repr(sorted(assignment.items())).encode()).hexdigest()[:16]


def write(decision: Decision, path: Path) -> None:
    """Write *decision* to *path*, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(decision), indent=1) + b"\n")
    part.replace(path)


def read(path: Path) -> Decision:
    """Return the decision in *path*.

    Raises:
        ContractError: no such file, not a decision, one of another version, or a device that is none.
    """
    try:
        document = files.read(path, files.RECORDS_BYTES)
    except OSError as error:
        raise ContractError(
            f"expected a partition decision, found no readable file ({error.strerror})",
            where=str(path),
            hint="`toolkit partition profile SCRIPT` makes one.",
        ) from None
    found = decode(document, Decision, str(path), hint="`toolkit partition profile SCRIPT` makes such a file.")
    if found.version != VERSION:
        raise ContractError(
            f"expected a partition decision of version {VERSION}, found {found.version}",
            where=str(path),
            hint="Make it again: `toolkit partition profile SCRIPT`.",
        )
    for name, device in found.assignment.items():
        if device not in range(found.devices):
            raise ContractError(
                f"expected partitions from 0 to {found.devices - 1} in assignment, found {device} for {name!r}",
                where=str(path),
                hint="Correct the assignment, or make it again: `toolkit partition profile SCRIPT`.",
            )
    return found


def for_partitions(path: Path, partitions: int, parameters: str) -> Decision:
    """Return the decision in *path*, which partition_file of *parameters* names, for a job of *partitions* partitions.

    Raises:
        ContractError: as `read`; or it is for another number of partitions.
    """
    found = read(path)
    if found.devices != partitions:
        raise ContractError(
            f"expected a decision for {partitions} partitions, found one for {found.devices}",
            where=f"{parameters}: partition_file {path}",
            hint="Make it again (toolkit partition profile SCRIPT), or change partitions.",
        )
    return found
