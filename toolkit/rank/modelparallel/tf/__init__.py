"""The TensorFlow half of the model parallel library: every public name of smdistributed.modelparallel.tensorflow.

A step function is traced on every rank. Each rank builds its own layers, for every microbatch, and operations that
exchange tensors with the other ranks; control dependencies put these into the order of the pipeline.
"""

import types
import typing

from toolkit.rank.modelparallel.objects import (
    CommGroup,
    RankType,
    allgather,
    barrier,
    broadcast,
    dp_barrier,
    mp_barrier,
    recv_from,
    send,
)
from toolkit.rank.modelparallel.ranks import (
    dp_rank,
    dp_size,
    get_dp_group,
    get_mp_group,
    get_pp_group,
    get_rdp_group,
    get_tp_group,
    is_initialized,
    local_rank,
    local_size,
    mp_rank,
    mp_size,
    pp_rank,
    pp_size,
    rank,
    rdp_rank,
    rdp_size,
    size,
    tp_rank,
    tp_size,
)
from toolkit.rank.modelparallel.tf.api import init, partition, shutdown, state
from toolkit.rank.modelparallel.tf.outputs import StepOutput
from toolkit.rank.modelparallel.tf.saving import CheckpointManager
from toolkit.rank.modelparallel.tf.step import step

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
TP_GROUP = CommGroup.TP_GROUP
PP_GROUP = CommGroup.PP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP

# Without this list `import *` takes this package's files, too: smp.layers would be layers.py.
__all__ = [
    name for name, value in globals().items() if not (name.startswith("_") or isinstance(value, types.ModuleType))
]


def __getattr__(name: str) -> typing.Any:
    """Make DistributedModel on first access: by then the script has imported its Keras."""
    if name != "DistributedModel":
        raise AttributeError(
            f"smdistributed.modelparallel.tensorflow has no {name}: docs/modelparallel.md has the names that are there "
            "(toolkit docs modelparallel)"
        )
    from toolkit.rank.modelparallel.tf.model import model_class

    distributed_model = globals()[name] = model_class()
    return distributed_model
