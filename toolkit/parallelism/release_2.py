"""Release 2 of SageMaker's model parallel library: `torch.sagemaker`, which only AWS's images hold.

It has release 1's hyperparameter (mp_parameters) and none of its interface: it shards with FSDP, and has no partitions.
Names: SMP of sagemaker-train 1.27.0 (distributed.py, seen 2026-11) and AWS's reference of the library's release 2.
"""

from collections.abc import Mapping
from typing import Any

# Release 1 has two of them, too, and requires its partitions beside them.
SHARED = frozenset(("tensor_parallel_degree", "activation_loading_horizon"))
OWN = frozenset(
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


def is_release_2(given: Any) -> bool:
    """True for the parameters of release 2: a name that release 1 does not know, or only shared ones."""
    if not isinstance(given, Mapping) or any(name in given for name in PARTITIONS):
        return False
    return bool(OWN & given.keys()) or (bool(given) and given.keys() <= SHARED)
