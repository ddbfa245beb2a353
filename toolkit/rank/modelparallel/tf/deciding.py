"""Which layer goes to which partition: from the job's file, the script's own words, or the partitioner."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism import decision, partitioner
from toolkit.parallelism.decision import Cut, Decision, digest
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import capture, layers
from toolkit.rank.modelparallel.tf.capture import Capture
from toolkit.rank.modelparallel.tf.costs import bytes_of, fingerprint, tree_of
from toolkit.rank.modelparallel.tf.manual import MANUAL


def decide(cfg: Parameters, model: Any, found: Capture, *, is_profile: bool) -> Decision:
    """Return the partition of *model*, whose first call is *found*; the profiling job measures it in any case.

    Raises:
        ContractError: the file is of another model or another number of partitions, or the model has fewer layers
            with variables than partitions.
        SMPError: a layer is assigned to a partition that does not exist.
    """
    if cfg.partition_file and not is_profile:
        return _of_file(cfg, fingerprint(model))
    if not cfg.auto_partition and not is_profile:
        return _by_hand(cfg, model)
    if MANUAL.devices:
        sys.stderr.write("[toolkit] smp: auto_partition is true: smp.partition has no effect\n")
    return _measured(cfg, model, found)


def _of_file(cfg: Parameters, known: str) -> Decision:
    found = decision.for_partitions(Path(cfg.partition_file).absolute(), cfg.partitions, VARIABLE)
    if found.fingerprint != known:
        raise ContractError(
            f"expected a decision for this model, with the fingerprint {known}, found one for {found.fingerprint}: "
            "paths, classes or shapes of layers differ",
            where=f"{VARIABLE}: partition_file {cfg.partition_file}",
            hint="Make it again (toolkit partition profile SCRIPT), or remove partition_file.",
        )
    return found


def _by_hand(cfg: Parameters, model: Any) -> Decision:
    default = cfg.default_partition or 0
    assignment = {"": default}
    for path, layer in layers.paths(model).items():
        device = MANUAL.devices.get(id(layer))
        if device is not None:
            assignment[path] = device
    for path, device in assignment.items():
        if not 0 <= device < cfg.partitions:
            raise SMPError(f"Layer {path!r}: expected a partition from 0 to {cfg.partitions - 1}, found {device}")
    return Decision(
        fingerprint=fingerprint(model),
        devices=cfg.partitions,
        memory_weight=cfg.memory_weight or 0.0,
        method="manual",
        reason=f"The script's smp.partition, else default_partition {default}.",
        assignment=assignment,
    )


def _measured(cfg: Parameters, model: Any, found: Capture) -> Decision:
    import tensorflow as tf

    tree = tree_of(model, found)
    made = partitioner.decide(
        tree,
        cfg.partitions,
        cfg.memory_weight if cfg.memory_weight is not None else 0.8,
        fingerprint(model),
        contiguous_alone=cfg.contiguous,
        profiled_by=f"tensorflow {tf.__version__}, layers timed one by one, activations estimated by outputs",
        source=f"{VARIABLE}: partitions",
    )
    return _with_flow(made, model, found)


def _with_flow(made: Decision, model: Any, found: Capture) -> Decision:
    """Return *made* with layers without variables where their last input is made, and the cuts that are left.

    Between TensorFlow's ranks an output goes straight to those that use it, not through the caller.
    """
    known = layers.paths(model)
    devices = {path: made.device_of(path) for path in known}
    for number, uses in zip(chosen := capture.undivided(found, devices), capture.uses(found, chosen), strict=True):
        path = found.calls[number].path
        if uses and not layers.variables(known[path]):
            devices[path] = devices[found.calls[chosen[uses[-1].call]].path]
    plan, chosen = capture.plan(found, devices, {}, made.devices)
    crossing: dict[tuple[int, int], tuple[int, int]] = {}
    for its in plan.transfers:
        if its.source is not None:
            value = found.calls[chosen[its.source.call]].outputs[its.source.output].value
            held = crossing.get((its.origin, its.target), (0, 0))
            crossing[its.origin, its.target] = (held[0] + bytes_of(value), held[1] + 1)
    assignment = {"": made.device_of("")} | {
        path: device for path, device in devices.items() if device != _inherited(path, devices, made)
    }
    return msgspec.structs.replace(
        made,
        assignment=assignment,
        decided=digest(assignment),
        cuts=tuple(
            Cut(source=source, target=target, bytes=count, calls=calls)
            for (source, target), (count, calls) in sorted(crossing.items())
        ),
    )


def _inherited(path: str, devices: dict[str, int], made: Decision) -> int:
    while path:
        path = path.rpartition(".")[0]
        if path in devices:
            return devices[path]
    return made.device_of("")
