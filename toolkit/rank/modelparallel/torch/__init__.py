"""The PyTorch side of the model parallel library: every public name of smdistributed.modelparallel.torch."""

import types

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
from toolkit.rank.modelparallel.torch.api import (
    get_dp_process_group,
    get_mp_process_group,
    get_pp_process_group,
    get_rdp_process_group,
    get_tp_process_group,
    get_world_process_group,
    init,
    shutdown,
    state,
)
from toolkit.rank.modelparallel.torch.checkpoint import load, resume_from_checkpoint, save, save_checkpoint
from toolkit.rank.modelparallel.torch.checkpointing import set_activation_checkpointing
from toolkit.rank.modelparallel.torch.model import DistributedModel, hvd_average_grads
from toolkit.rank.modelparallel.torch.optimizer import DistributedOptimizer
from toolkit.rank.modelparallel.torch.partitioned import partition, set_partition
from toolkit.rank.modelparallel.torch.step import is_tracing, step
from toolkit.rank.modelparallel.torch.step_outputs import StepOutput
from toolkit.rank.modelparallel.torch.tensor.delayed import delay_param_initialization
from toolkit.rank.modelparallel.torch.tensor.distribute import (
    model_creation,
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
)

WORLD = CommGroup.WORLD
MP_GROUP = CommGroup.MP_GROUP
DP_GROUP = CommGroup.DP_GROUP
TP_GROUP = CommGroup.TP_GROUP
PP_GROUP = CommGroup.PP_GROUP
RDP_GROUP = CommGroup.RDP_GROUP

# Without this list `import *` takes this package's files, too: smp.checkpoint would be checkpoint.py.
__all__ = [
    name for name, value in globals().items() if not (name.startswith("_") or isinstance(value, types.ModuleType))
]
