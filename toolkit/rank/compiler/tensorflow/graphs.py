"""Reads the operations of a traced tf.function, and tells which of them XLA does not compile."""

from ...frameworks import tensorflow as private

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

# Of TensorFlow 2.21, tried on CPU. A collective below jit_compile ends the process there ("Unimplemented", abort).
COLLECTIVES = ("Collective", "Nccl", "Horovod", "XlaAllReduce")
PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
OUTSIDE = (*PYTHON, "PrintV2", "Print", "StringFormat", "Save", "SaveV2", "WriteScalarSummary", "WriteSummary")
INPUT = ("Iterator", "ReduceDataset", "OptionalFromValue")
DEVICES = "operations on several devices"  # Stands among the types of operations.


def operations(function: "Any") -> "frozenset[str]":
    """Return the types of all operations in the last trace of the tf.function *function*, nested ones included."""
    traces = private.list_traces(function)
    if not traces:
        return frozenset()
    graph = traces[-1].graph
    try:
        definition = graph.as_graph_def()
    except ValueError:  # Its constants exceed 2 GiB.
        return frozenset(operation.type for operation in graph.get_operations())
    nodes = [*definition.node, *(node for nested in definition.library.function for node in nested.node_def)]
    types = {node.op for node in nodes}
    devices = {node.device.rpartition("/")[2].lower() for node in nodes}
    kinds = [device.rpartition(":")[0] for device in devices if device.count(":") == 2]
    if len(set(kinds)) < len(kinds):  # Two of a kind: a CPU beside a GPU is usual.
        types.add(DEVICES)
    return frozenset(types)


# The collectives of two replicas in one process can wait for each other for ever beside compiled code: seen in two of
# seven runs on TensorFlow 2.21 with two logical CPUs and OMP_NUM_THREADS=1, and in none of ten without collectives.
LOOP = "several devices in one process, in a training loop of the script's own"
REPLICAS = (
    "several devices in one process, whose collectives can wait for each other for ever beside compiled code; "
    "MirroredStrategy(cross_device_ops=tf.distribute.ReductionToOneDevice()) has none"
)


def collectives(operations: "frozenset[str]") -> "list[str]":
    """Return those of *operations* by which ranks exchange tensors."""
    return sorted(kind for kind in operations if kind.startswith(COLLECTIVES))


def obstacles(operations: "frozenset[str]", *, with_input: bool) -> "list[str]":
    """Return those of *operations* that XLA does not compile. *with_input*: fetching batches counts as well."""
    prefixes = COLLECTIVES + (INPUT if with_input else ())
    return sorted(kind for kind in operations if kind in OUTSIDE or kind == DEVICES or kind.startswith(prefixes))


def describe_change(old_type: "Any", new_type: "Any") -> str:
    """Return how two function types of a tf.function differ: which arguments' shapes or values changed."""
    old, new = _inputs(old_type), _inputs(new_type)
    changes = [
        "%s: %s, then %s" % (name, old[name], new[name]) for name in new if name in old and old[name] != new[name]
    ]
    return "; ".join(changes[:3]) or "other arguments"


def _inputs(function_type: "Any") -> "dict[str, str]":
    kinds = {}
    for name, parameter in function_type.parameters.items():
        kind = str(parameter.type_constraint)
        for noise in ("TensorSpec(", "name=None", "Tensor(", "Literal["):
            kind = kind.replace(noise, "")
        kinds[str(name)] = kind.replace(", )", "").rstrip(")], ")
    return kinds
