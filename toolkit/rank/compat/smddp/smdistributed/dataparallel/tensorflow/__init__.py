"""The library's TensorFlow half over toolkit/rank/dataparallel/tf."""

from toolkit.rank.dataparallel.tf.api import Compression, Library, ReduceOp
from toolkit.rank.dataparallel.tf.training import hook_class, optimizer_function, tape_function

_library = Library()  # The process's own; the old functions are its methods.

init = _library.init
shutdown = _library.shutdown
size = _library.size
rank = _library.rank
local_size = _library.local_size
local_rank = _library.local_rank
allreduce = _library.allreduce
oob_allreduce = _library.oob_allreduce
broadcast = _library.broadcast
broadcast_variables = _library.broadcast_variables
broadcast_global_variables = _library.broadcast_global_variables
BroadcastGlobalVariablesHook = hook_class(_library)
DistributedGradientTape = tape_function(_library)
DistributedOptimizer = optimizer_function(_library)


def overlap(tensor: object) -> object:
    """Return *tensor* unchanged; AWS's function marks where XLA may split its graph."""
    return tensor


__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ReduceOp",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "init",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "overlap",
    "rank",
    "shutdown",
    "size",
]
