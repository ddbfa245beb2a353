"""Which layer is on which partition: decided at the model's first call in a step, then carried out."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism import decision
from toolkit.parallelism.decision import Decision
from toolkit.rank.modelparallel import output, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.tf import boundary, layers
from toolkit.rank.modelparallel.tf.capture import Capture
from toolkit.rank.modelparallel.tf.costs import bytes_of
from toolkit.rank.modelparallel.tf.deciding import decide
from toolkit.rank.modelparallel.tf.running import RUNNING
from toolkit.records import decode

KIND = "tf-partition"  # of the messages that carry the decision


class Partition:
    """The partition of one model: nothing before its first call in a step.

    `devices`: path of each layer -> partition; `costs`: path -> relative cost of one forward pass; `local`: the largest
    layers that are whole on this rank.
    """

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}
        self.costs: dict[str, float] = {}
        self.decision: Decision | None = None
        self.local: list[Any] = []
        self.hooks: list[Callable[[], None]] = []
        # By id: the variables here and elsewhere, the partition of each, and the layers with theirs.
        self._local: dict[int, Any] = {}
        self._away: dict[int, Any] = {}
        self._holders: dict[int, int] = {}
        self._placed: dict[int, tuple[Any, int]] = {}

    @property
    def is_settled(self) -> bool:
        """True after the model's first call in a step."""
        return self.decision is not None

    def settle(self, model: Any, found: Capture) -> None:
        """Decide on *found*, the model's first call, and free the variables of other partitions.

        Later give layers that came since a partition, too: that of the layer with which they share a variable, of the
        one that they replace, or of what they are in.
        """
        here = world.current()
        if is_first := self.decision is None:
            self.decision = _agreed(here, lambda: decide(here.cfg, model, found, is_profile=here.is_profile))
            if here.is_profile:
                sys.stderr.write(f"the partition decision is in {here.folder / decision.FILE}\n")
                raise SystemExit(0)
            modules = [] if self.decision.tree is None else list(self.decision.tree.walk())
            self.costs = {module.name: module.compute_s for module in modules if module.compute_s}
        assert self.decision is not None
        known = layers.paths(model)
        self.devices = self._devices(known, self.decision)
        self._placed |= {id(layer): (layer, self.devices[path]) for path, layer in known.items()}
        _check_shared(known, self.devices)
        self._place(here, known)
        if is_first:
            for hook in self.hooks:
                hook()

    def _devices(self, known: dict[str, Any], decided: Decision) -> dict[str, int]:
        """Return the partition of each of the layers *known* by path."""
        found: dict[str, int] = {}
        for path, layer in known.items():
            if id(layer) in self._placed:
                found[path] = self._placed[id(layer)][1]
            elif not self.devices:
                found[path] = decided.device_of(path)
            else:
                shared = (self._holders[id(each)] for each in layers.own_variables(layer) if id(each) in self._holders)
                around = found.get(path.rpartition(".")[0], decided.device_of(""))
                found[path] = next(shared, self.devices.get(path, around))
        return found

    def _place(self, here: world.World, known: dict[str, Any]) -> None:
        """Take in the variables of the layers *known* that are new."""
        me = here.rank_in("pp")
        local, away = dict[int, Any](), dict[int, Any]()
        for path, layer in known.items():
            table = local if self.devices[path] == me else away
            for variable in layers.own_variables(layer):
                if id(variable) not in self._holders:
                    self._holders[id(variable)] = self.devices[path]
                    table[id(variable)] = variable
        self.local = _largest(known, {path for path, device in self.devices.items() if device == me})
        self._local |= local
        self._away |= away
        _same_on_replicas(here, local.values())
        for variable in away.values():
            empty(variable)

    def is_local(self, variable: Any) -> bool:
        """True if this rank holds *variable*."""
        return RUNNING.is_whole or id(variable) not in self._away

    def held_bytes(self) -> int:
        """Return the bytes of the variables of this rank's layers."""
        return sum(bytes_of(variable) for variable in self._local.values())

    def anchor(self, model: Any) -> Any:
        """Return the anchor of this rank's operations (boundary.py): it depends on the smallest trainable variable."""
        mine = [variable for variable in model.trainable_variables if id(variable) in self._local]
        smallest = min(mine, key=lambda variable: variable.shape.num_elements(), default=None)
        return boundary.anchor(smallest)


def _same_on_replicas(here: world.World, variables: Iterable[Any]) -> None:
    """Give all replicas the first one's values of *variables*."""
    replicas = here.group("rdp")
    if len(replicas) == 1:
        return
    import tensorflow as tf

    with tf.init_scope():
        for variable in variables:
            value = layers.stored(variable)
            if here.rank == replicas[0]:
                for rank in replicas[1:]:
                    here.messenger.send(rank, KIND, "value", value.numpy())
            else:
                value.assign(here.messenger.receive(replicas[0], KIND, "value").payload)


def _largest(known: dict[str, Any], mine: set[str]) -> list[Any]:
    """Return the layers whose paths, and those of all layers below, are in *mine*, without what is below them."""
    found: list[str] = []
    for path in known:
        below = {name for name in known if name.startswith(path + ".")}
        if path in mine and below <= mine and not any(path.startswith(other + ".") for other in found):
            found.append(path)
    return [known[path] for path in found]


def empty(variable: Any) -> None:
    """Free the memory of *variable*, which another rank holds."""
    import tensorflow as tf

    its = layers.stored(variable)
    with tf.init_scope():
        tf.raw_ops.AssignVariableOp(resource=its.handle, value=tf.zeros([0], its.dtype), validate_shape=False)


def fill(variable: Any, value: Any) -> None:
    """Give *variable*, empty or not, *value*."""
    import tensorflow as tf

    its = layers.stored(variable)
    with tf.init_scope():
        tf.raw_ops.AssignVariableOp(
            resource=its.handle, value=tf.convert_to_tensor(value, its.dtype), validate_shape=False
        )


def _agreed(here: world.World, decide_here: Callable[[], Decision]) -> Decision:
    """Return the decision of rank 0, which all ranks follow; an error of rank 0 is raised by all."""
    if here.rank:
        payload = here.messenger.receive(0, KIND, "decision").payload
        if isinstance(payload, Exception):
            raise payload
        return decode(payload, Decision, "the decision of rank 0")
    try:
        found = decide_here()
    except (ContractError, SMPError) as error:
        for rank in range(1, here.size):
            here.messenger.send(rank, KIND, "decision", SMPError(str(error)))
        raise
    for rank in range(1, here.size):
        here.messenger.send(rank, KIND, "decision", msgspec.json.encode(found))
    output.try_to(lambda: _write(found, here), "the partition decision")
    return found


def _write(found: Decision, here: world.World) -> None:
    here.folder.mkdir(parents=True, exist_ok=True)
    decision.write(found, here.folder / decision.FILE)


def _check_shared(known: dict[str, Any], devices: dict[str, int]) -> None:
    """Raise where layers of different partitions hold one variable."""
    holders: dict[int, str] = {}
    for path, layer in known.items():
        for variable in layers.own_variables(layer):
            first = holders.setdefault(id(variable), path)
            if devices[first] != devices[path]:
                raise SMPError(
                    f"Layers {first!r} and {path!r} hold the same variable ({variable.name}): expected them on one "
                    f"partition, found {devices[first]} and {devices[path]}."
                )
