"""Release 2 of SageMaker's model parallel library: `torch.sagemaker`, which only AWS's images hold.

It has release 1's hyperparameter (mp_parameters) and none of its interface: it shards with FSDP, and has no partitions.
Names: SMP of sagemaker-train 1.27.0 (distributed.py, seen 2026-11) and AWS's reference of the library's release 2.
"""

from collections.abc import Mapping
from typing import Any

# Release 1 has these two, too, and requires partitions beside them.
SHARED = frozenset(("tensor_parallel_degree", "activation_loading_horizon"))
RELEASE_2_ONLY = frozenset(
    (
        "hybrid_shard_degree",
        "sm_activation_offloading",
        "fsdp_cache_flush_warnings",
        "allow_empty_shards",
        "context_parallel_degree",
        "expert_parallel_degree",
        "random_seed",
    )
)
PARTITIONS = ("partitions", "pipeline_parallel_degree")


def is_release_2(parameters: Any) -> bool:
    """True for the parameters of release 2: a name that release 1 does not know, or only shared ones."""
    if not isinstance(parameters, Mapping) or any(name in parameters for name in PARTITIONS):
        return False
    return bool(RELEASE_2_ONLY & parameters.keys()) or (bool(parameters) and parameters.keys() <= SHARED)
