"""Assigns layers to partitions: decides at the model's first call in a step, then frees the other partitions'
layers."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism import decision
from toolkit.parallelism.decision import PartitionDecision
from toolkit.rank.modelparallel import output, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import boundary, layers
from toolkit.rank.modelparallel.tf.capture import ModelCapture
from toolkit.rank.modelparallel.tf.costs import bytes_of
from toolkit.rank.modelparallel.tf.deciding import decide
from toolkit.rank.modelparallel.tf.running import PROCESS_STATE
from toolkit.records import decode

KIND = "tf-partition"  # of the messages that carry the decision


class Partition:
    """The partition of one model; empty before its first call in a step.

    `devices`: path of each layer -> partition; `costs`: path -> relative cost of one forward pass; `local`: the largest
    layers that are entirely on this rank.
    """

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}
        self.costs: dict[str, float] = {}
        self.decision: PartitionDecision | None = None
        self.local: list[Any] = []
        self.hooks: list[Callable[[], None]] = []
        # By id: the variables of this rank and of others, the partition of each, and the layers with their partitions.
        self._local: dict[int, Any] = {}
        self._remote: dict[int, Any] = {}
        self._holders: dict[int, int] = {}
        self._placed: dict[int, tuple[Any, int]] = {}

    @property
    def is_settled(self) -> bool:
        """True after the model's first call in a step."""
        return self.decision is not None

    def settle(self, model: Any, captured: ModelCapture) -> None:
        """Decide by *captured*, the model's first call, and free the variables of other partitions.

        Later, assign new layers: to the partition of the layer with which they share a variable, of the layer that they
        replace, or of the layer around them.
        """
        current_world = world.current()
        if is_first := self.decision is None:
            self.decision = _agree_on_decision(
                current_world, lambda: decide(current_world.cfg, model, captured, is_profile=current_world.is_profile)
            )
            if current_world.is_profile:
                sys.stderr.write(f"the partition decision is in {current_world.folder / decision.FILE}\n")
                raise SystemExit(0)
            modules = [] if self.decision.tree is None else list(self.decision.tree.walk())
            self.costs = {module.name: module.compute_s for module in modules if module.compute_s}
        assert self.decision is not None
        layers_by_path = layers.paths(model)
        self.devices = self._devices(layers_by_path, self.decision)
        self._placed |= {id(layer): (layer, self.devices[path]) for path, layer in layers_by_path.items()}
        _check_shared(layers_by_path, self.devices)
        self._take_variables(current_world, layers_by_path)
        if is_first:
            for hook in self.hooks:
                hook()

    def _devices(self, layers_by_path: dict[str, Any], decided: PartitionDecision) -> dict[str, int]:
        """Return the partition of each of the layers *layers_by_path* by path."""
        devices: dict[str, int] = {}
        for path, layer in layers_by_path.items():
            if id(layer) in self._placed:
                devices[path] = self._placed[id(layer)][1]
            elif not self.devices:
                devices[path] = decided.device_of(path)
            else:
                shared_devices = (
                    self._holders[id(variable)]
                    for variable in layers.own_variables(layer)
                    if id(variable) in self._holders
                )
                device_of_parent = devices.get(path.rpartition(".")[0], decided.device_of(""))
                devices[path] = next(shared_devices, self.devices.get(path, device_of_parent))
        return devices

    def _take_variables(self, current_world: world.World, layers_by_path: dict[str, Any]) -> None:
        """Register the new variables of the layers *layers_by_path*."""
        me = current_world.rank_in("pp")
        local, remote = dict[int, Any](), dict[int, Any]()
        for path, layer in layers_by_path.items():
            table = local if self.devices[path] == me else remote
            for variable in layers.own_variables(layer):
                if id(variable) not in self._holders:
                    self._holders[id(variable)] = self.devices[path]
                    table[id(variable)] = variable
        self.local = _find_largest(layers_by_path, {path for path, device in self.devices.items() if device == me})
        self._local |= local
        self._remote |= remote
        _copy_to_replicas(current_world, local.values())
        for variable in remote.values():
            empty(variable)

    def is_local(self, variable: Any) -> bool:
        """True if this rank holds *variable*."""
        return PROCESS_STATE.is_whole or id(variable) not in self._remote

    def held_bytes(self) -> int:
        """Return the bytes of the variables of this rank's layers."""
        return sum(bytes_of(variable) for variable in self._local.values())

    def anchor(self, model: Any) -> Any:
        """Return the anchor of this rank's operations (boundary.py): it depends on the smallest trainable variable."""
        local_variables = [variable for variable in model.trainable_variables if id(variable) in self._local]
        smallest = min(local_variables, key=lambda variable: variable.shape.num_elements(), default=None)
        return boundary.anchor(smallest)


def _copy_to_replicas(current_world: world.World, variables: Iterable[Any]) -> None:
    """Copy the first replica's values of *variables* to all replicas."""
    replicas = current_world.group("rdp")
    if len(replicas) == 1:
        return
    import tensorflow as tf

    with tf.init_scope():
        for variable in variables:
            value = layers.to_tf_variable(variable)
            if current_world.rank == replicas[0]:
                for rank in replicas[1:]:
                    current_world.messenger.send(rank, KIND, "value", value.numpy())
            else:
                value.assign(current_world.messenger.receive(replicas[0], KIND, "value").payload)


def _find_largest(layers_by_path: dict[str, Any], local_paths: set[str]) -> list[Any]:
    """Return the layers whose paths, and those of all layers below, are in *local_paths*, without the layers below
    them."""
    largest: list[str] = []
    for path in layers_by_path:
        below = {name for name in layers_by_path if name.startswith(path + ".")}
        if path in local_paths and below <= local_paths and not any(path.startswith(outer + ".") for outer in largest):
            largest.append(path)
    return [layers_by_path[path] for path in largest]


def empty(variable: Any) -> None:
    """Free the memory of *variable*, which another rank holds."""
    import tensorflow as tf

    tf_variable = layers.to_tf_variable(variable)
    with tf.init_scope():
        tf.raw_ops.AssignVariableOp(
            resource=tf_variable.handle, value=tf.zeros([0], tf_variable.dtype), validate_shape=False
        )


def fill(variable: Any, value: Any) -> None:
    """Set *variable*, empty or not, to *value*."""
    import tensorflow as tf

    tf_variable = layers.to_tf_variable(variable)
    with tf.init_scope():
        tf.raw_ops.AssignVariableOp(
            resource=tf_variable.handle, value=tf.convert_to_tensor(value, tf_variable.dtype), validate_shape=False
        )


def _agree_on_decision(
    current_world: world.World, decide_locally: Callable[[], PartitionDecision]
) -> PartitionDecision:
    """Return the decision of rank 0, which all ranks follow; an error of rank 0 is raised by all."""
    if current_world.rank:
        payload = current_world.messenger.receive(0, KIND, "decision").payload
        if isinstance(payload, Exception):
            raise payload
        return decode(payload, PartitionDecision, "the decision of rank 0")
    try:
        own_decision = decide_locally()
    except (ContractError, SMPError) as error:
        for rank in range(1, current_world.size):
            current_world.messenger.send(rank, KIND, "decision", SMPError(str(error)))
        raise
    for rank in range(1, current_world.size):
        current_world.messenger.send(rank, KIND, "decision", msgspec.json.encode(own_decision))
    output.try_to(lambda: _write(own_decision, current_world), "the partition decision")
    return own_decision


def _write(partition_decision: PartitionDecision, current_world: world.World) -> None:
    current_world.folder.mkdir(parents=True, exist_ok=True)
    decision.write(partition_decision, current_world.folder / decision.FILE)


def _check_shared(layers_by_path: dict[str, Any], devices: dict[str, int]) -> None:
    """Raise SMPError if layers of different partitions hold one variable."""
    holders: dict[int, str] = {}
    for path, layer in layers_by_path.items():
        for variable in layers.own_variables(layer):
            first = holders.setdefault(id(variable), path)
            if devices[first] != devices[path]:
                raise SMPError(
                    f"Layers {first!r} and {path!r} hold the same variable ({variable.name}): expected them on one "
                    f"partition, found {devices[first]} and {devices[path]}."
                )
