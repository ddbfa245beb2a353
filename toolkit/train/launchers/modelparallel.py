"""Pure: what a job of SageMaker's model parallel library (smdistributed.modelparallel, mp_parameters) gets.

Without AWS's library in the image, scripts get the toolkit's own (toolkit/rank/modelparallel), and its parameters are
checked before the start. Where AWS's is installed (its helper `smddpmprun` is on PATH), ranks under mpirun start as in
sagemaker-training 5.1.4, and the library checks its parameters itself.
"""

from typing import Any

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.train.launchers import compat
from toolkit.train.launchers.compat import asks_for_model_parallel

HELPER = "smddpmprun"
PARAMETERS = "mp_parameters"
# "1": the one process of the job measures its model for any number of partitions (toolkit/rank/modelparallel/world.py).
PROFILE = "TOOLKIT_SMP_PROFILE"


def check(job: Job, ranks: int) -> None:
    """Check the parameters of the toolkit's own library, for a job of *ranks* ranks.

    Raises:
        ContractError: a parameter is unknown or wrong, or the number of ranks does not fit them; or partition_file is
            no partition decision for as many partitions. Whether it is one for this model, the first step finds.
    """
    if "smp" not in compat.names(job) or not asks_for_model_parallel(job) or HELPER in job.machine.programs:
        return
    from toolkit.parallelism import decision, parameters, placement, release_2

    values = job.spec.hyperparameters[PARAMETERS]
    if not isinstance(values, dict):
        raise ContractError(
            f"expected a JSON object of the model parallel library's parameters, found {str(values)[:40]!r}",
            where=PARAMETERS,
            hint='For example {"partitions": 2, "microbatches": 4} (docs/modelparallel.md).',
        )
    if release_2.is_release_2(values):
        raise ContractError(
            "expected parameters of the model parallel library's release 1 (smdistributed.modelparallel), which the "
            f"toolkit has, found those of release 2 ({', '.join(sorted(values)[:4])}): torch.sagemaker, which only "
            "AWS's images hold; this one does not",
            where=PARAMETERS,
            hint="Without it, shard with FSDP2 (torch.distributed.fsdp.fully_shard) and split layers with the tensor "
            'parallel plans of transformers (from_pretrained(..., tp_plan="auto")), and leave smp out of Torchrun(). '
            "docs/modelparallel.md says more.",
        )
    cfg = parameters.read(values, PARAMETERS)
    if ranks == 1 and job.environ.get(PROFILE) == "1":
        return
    placement.place(ranks, cfg.partitions, cfg.tensor_parallel_degree, cfg.placement_strategy, PARAMETERS)
    if cfg.partition_file and job.cluster.takes_part and job.script is not None:
        decision.read_for_partitions(job.script.folder / cfg.partition_file, cfg.partitions, PARAMETERS)


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
    values = job.spec.hyperparameters.get("mp_parameters")
    return values if isinstance(values, dict) else {}
