"""Decides the partition of each layer: by the job's file, the script's smp.partition, or the partitioner."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism import decision, partitioner
from toolkit.parallelism.decision import Cut, PartitionDecision, digest
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import capture, layers
from toolkit.rank.modelparallel.tf.capture import ModelCapture
from toolkit.rank.modelparallel.tf.costs import build_tree, bytes_of, fingerprint
from toolkit.rank.modelparallel.tf.manual import MANUAL


def decide(cfg: Parameters, model: Any, captured: ModelCapture, *, is_profile: bool) -> PartitionDecision:
    """Return the partition of *model*, whose first call is *captured*; the profiling job measures it in any case.

    Raises:
        ContractError: the file is of another model or another number of partitions, or the model has fewer layers
            with variables than partitions.
        SMPError: a layer is assigned to a partition that does not exist.
    """
    if cfg.partition_file and not is_profile:
        return _decide_by_file(cfg, fingerprint(model))
    if not cfg.auto_partition and not is_profile:
        return _decide_by_script(cfg, model)
    if MANUAL.devices:
        sys.stderr.write("[toolkit] smp: auto_partition is true: smp.partition has no effect\n")
    return _decide_by_partitioner(cfg, model, captured)


def _decide_by_file(cfg: Parameters, model_fingerprint: str) -> PartitionDecision:
    partition_decision = decision.read_for_partitions(Path(cfg.partition_file).absolute(), cfg.partitions, VARIABLE)
    if partition_decision.fingerprint != model_fingerprint:
        raise ContractError(
            f"expected a decision for this model, with the fingerprint {model_fingerprint}, found one for "
            f"{partition_decision.fingerprint}: paths, classes or shapes of layers differ",
            where=f"{VARIABLE}: partition_file {cfg.partition_file}",
            hint="Make it again (toolkit partition profile SCRIPT), or remove partition_file.",
        )
    return partition_decision


def _decide_by_script(cfg: Parameters, model: Any) -> PartitionDecision:
    default = cfg.default_partition or 0
    assignment = {"": default}
    for path, layer in layers.paths(model).items():
        device = MANUAL.devices.get(id(layer))
        if device is not None:
            assignment[path] = device
    for path, device in assignment.items():
        if not 0 <= device < cfg.partitions:
            raise SMPError(f"Layer {path!r}: expected a partition from 0 to {cfg.partitions - 1}, found {device}")
    return PartitionDecision(
        fingerprint=fingerprint(model),
        devices=cfg.partitions,
        memory_weight=cfg.memory_weight or 0.0,
        method="manual",
        reason=f"The script's smp.partition, else default_partition {default}.",
        assignment=assignment,
    )


def _decide_by_partitioner(cfg: Parameters, model: Any, captured: ModelCapture) -> PartitionDecision:
    import tensorflow as tf

    tree = build_tree(model, captured)
    partition_decision = partitioner.decide(
        tree,
        cfg.partitions,
        cfg.memory_weight if cfg.memory_weight is not None else 0.8,
        fingerprint(model),
        contiguous_alone=cfg.contiguous,
        profiled_by=f"tensorflow {tf.__version__}, layers timed one by one, activations estimated by outputs",
        source=f"{VARIABLE}: partitions",
    )
    return _move_light_layers(partition_decision, model, captured)


def _move_light_layers(partition_decision: PartitionDecision, model: Any, captured: ModelCapture) -> PartitionDecision:
    """Return *partition_decision* with layers without variables on the device that makes their last input, and its
    cuts.

    Between TensorFlow's ranks an output goes directly to the ranks that use it, not through the caller.
    """
    layers_by_path = layers.paths(model)
    devices = {path: partition_decision.device_of(path) for path in layers_by_path}
    for number, uses in zip(
        chosen := capture.find_undivided(captured, devices), capture.find_uses(captured, chosen), strict=True
    ):
        path = captured.calls[number].path
        if uses and not layers.variables(layers_by_path[path]):
            devices[path] = devices[captured.calls[chosen[uses[-1].call]].path]
    plan, chosen = capture.make_call_plan(captured, devices, {}, partition_decision.devices)
    crossing: dict[tuple[int, int], tuple[int, int]] = {}
    for transfer in plan.transfers:
        if transfer.source is not None:
            value = captured.calls[chosen[transfer.source.call]].outputs[transfer.source.output].value
            totals = crossing.get((transfer.origin, transfer.target), (0, 0))
            crossing[transfer.origin, transfer.target] = (totals[0] + bytes_of(value), totals[1] + 1)
    assignment = {"": partition_decision.device_of("")} | {
        path: device
        for path, device in devices.items()
        if device != _inherited_device(path, devices, partition_decision)
    }
    return msgspec.structs.replace(
        partition_decision,
        assignment=assignment,
        decided=digest(assignment),
        cuts=tuple(
            Cut(source=source, target=target, bytes=count, calls=calls)
            for (source, target), (count, calls) in sorted(crossing.items())
        ),
    )


def _inherited_device(path: str, devices: dict[str, int], partition_decision: PartitionDecision) -> int:
    while path:
        path = path.rpartition(".")[0]
        if path in devices:
            return devices[path]
    return partition_decision.device_of("")
