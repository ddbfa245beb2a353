"""Pure: what sagemaker-training 5.1.4 adds under mpirun for SageMaker's model parallel library (smdistributed).

The image must hold the library itself, which is AWS's. Its helper `smddpmprun` sets variables for its collectives.
"""

from typing import Any

from toolkit.job.job import Job
from toolkit.launchers.compat import asks_for_model_parallel

HELPER = "smddpmprun"


def helper(job: Job) -> tuple[str, ...]:
    """Return the program to put before a rank's interpreter: smddpmprun if it is installed and not switched off."""
    if not asks_for_model_parallel(job) or HELPER not in job.machine.programs:
        return ()
    if _parameters(job).get("ddp_dist_backend", "auto") != "auto":
        return ()
    return (HELPER, "-i", job.cluster.instance_type, "--allow-bypass")


def variables(job: Job) -> dict[str, str]:
    """Return NCCL's variables for the library: NCCL_PROTO in AWS's PyTorch images, also NCCL_ALGO from torch 2 on."""
    torch = job.environ.get("SM_DLC_TORCH_VERSION", "")
    if not torch or not asks_for_model_parallel(job):
        return {}
    major = torch.partition(".")[0]
    return {"NCCL_PROTO": "simple"} | ({"NCCL_ALGO": "ring"} if major.isdigit() and int(major) > 1 else {})


def _parameters(job: Job) -> dict[str, Any]:
    found = job.hyperparameters.get("mp_parameters")
    return found if isinstance(found, dict) else {}
