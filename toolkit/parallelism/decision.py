"""The partition decision: the device of each module, and the reason. One job writes it as JSON, a later job reads it.

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
    """The traffic from device `source` to device `target` in one forward pass of one microbatch."""

    source: int
    target: int
    bytes: int
    calls: int


class PartitionDecision(Record, frozen=True, kw_only=True):
    """An assignment of modules to devices."""

    version: int = VERSION
    """The version of the file's format."""
    fingerprint: str
    """Equal for models of equal module paths, classes and parameter shapes (modelparallel makes it)."""
    devices: int
    """The number of partitions."""
    memory_weight: float
    """The weight of memory beside compute (0 to 1)."""
    method: str
    """"tree" (the published one), "contiguous" (the best contiguous split, where it won) or "manual"."""
    reason: str
    """One sentence for people, which says by how much the method won."""
    assignment: dict[str, int]
    """Module path -> device (0 to devices - 1). A module without an entry is on its nearest named ancestor's device."""
    cuts: tuple[Cut, ...] = ()
    """The traffic between devices."""
    tree: Module | None = None
    """The measured costs; for "manual" the parameters alone."""
    profiled_by: str = ""
    """The framework, its version and the kind of device that measured the costs."""
    decided: str = ""
    """`digest` of the assignment as the method left it, which reveals edits; "" in files of earlier releases."""

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
    """Return a hash of *assignment* that does not depend on its order."""
    return hashlib.sha256(repr(sorted(assignment.items())).encode()).hexdigest()[:16]


def write(decision: PartitionDecision, path: Path) -> None:
    """Write *decision* to *path*, completely or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(decision), indent=1) + b"\n")
    part.replace(path)


def read(path: Path) -> PartitionDecision:
    """Return the decision in *path*.

    Raises:
        ContractError: no such file, not a decision, one of another version, or a device that does not exist.
    """
    try:
        document = files.read(path, files.RECORDS_BYTES)
    except OSError as error:
        raise ContractError(
            f"expected a partition decision, found no readable file ({error.strerror})",
            where=str(path),
            hint="`toolkit partition profile SCRIPT` makes one.",
        ) from None
    decision = decode(
        document, PartitionDecision, str(path), hint="`toolkit partition profile SCRIPT` makes such a file."
    )
    if decision.version != VERSION:
        raise ContractError(
            f"expected a partition decision of version {VERSION}, found {decision.version}",
            where=str(path),
            hint="Make it again: `toolkit partition profile SCRIPT`.",
        )
    for name, device in decision.assignment.items():
        if device not in range(decision.devices):
            raise ContractError(
                f"expected partitions from 0 to {decision.devices - 1} in assignment, found {device} for {name!r}",
                where=str(path),
                hint="Correct the assignment, or make it again: `toolkit partition profile SCRIPT`.",
            )
    return decision


def read_for_partitions(path: Path, partitions: int, parameters: str) -> PartitionDecision:
    """Return the decision in *path*, which partition_file of *parameters* names, for a job of *partitions* partitions.

    Raises:
        ContractError: as `read`; or it is for another number of partitions.
    """
    decision = read(path)
    if decision.devices != partitions:
        raise ContractError(
            f"expected a decision for {partitions} partitions, found one for {decision.devices}",
            where=f"{parameters}: partition_file {path}",
            hint="Make it again (toolkit partition profile SCRIPT), or change partitions.",
        )
    return decision
