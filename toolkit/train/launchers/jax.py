"""Distribution jax: ranks of JAX on GPUs, TPUs or CPUs; one for each GPU of a host unless the job says otherwise.

JAX has no launcher: each process calls `jax.distributed.initialize`, and rank 0 runs the coordinator. Of what that
needs, JAX 0.10 reads JAX_COORDINATOR_ADDRESS and JAX_LOCAL_DEVICE_IDS; the rank hook hands it the number of processes
and the rank (toolkit/rank/hook/jax_rank.py), which are also in JAX_NUM_PROCESSES and JAX_PROCESS_ID (as Kubeflow
Trainer names them) and in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. toolkit/rank/hook/rank_starter.py starts
the ranks, each through the rank shim.

JAX's preemption service is switched off: it takes SIGTERM away from the script (jax 0.10.2: a rank without a handler of
its own then ignores a stop).
"""

import json
from pathlib import Path

import toolkit
from toolkit.errors import UserError
from toolkit.job.command import command
from toolkit.job.job import Job
from toolkit.job.plan import RANK_WRAPPER, Phase, Plan, ProcessSpec
from toolkit.train.launchers import compat, fabric
from toolkit.train.launchers.environment import (
    LOOPBACK,
    environment,
    master,
    name_needs,
    on_one_machine,
    stop_policy,
    tokens,
)
from toolkit.train.launchers.table import world_size

STARTER = Path(toolkit.__file__).parent / "rank" / "hook" / "rank_starter.py"
WHERE = "distribution jax"
GPU_PLATFORMS = ("cuda", "gpu", "rocm")


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for ranks of JAX.

    Raises:
        UserError: the host's GPUs cannot be shared out evenly among its ranks.
    """
    assert job.script is not None
    arguments = tokens(job)
    per_host, hosts = job.processes_per_host, job.cluster.size
    # Of the job, not of the image: a variable that stands for another number of ranks would be wrong.
    sizes = {
        "TOOLKIT_JAX": "on",
        "WORLD_SIZE": str(world_size(job)),
        "LOCAL_WORLD_SIZE": str(per_host),
        "JAX_NUM_PROCESSES": str(world_size(job)),
    }
    environ = {**_defaults(job), **environment(job, arguments), **sizes}
    has_rank_shim = job.settings.rank_shim == "on"
    own_python = environ.pop("PYTHON_EXEC", None)  # torchrun's; the starter reads it as the rank shim's.
    if has_rank_shim:
        environ["PYTHON_EXEC"] = str(run_folder / RANK_WRAPPER)
        environ |= {"TOOLKIT_PYTHON_EXEC": own_python} if own_python else {}
    first = job.cluster.rank * per_host
    main = ProcessSpec(
        name="rank_starter",
        argv=(job.interpreter, "-I", "-S", str(STARTER), *command(job.script, job.interpreter, arguments)),
        environ=environ,
        launcher_environ={"TOOLKIT_LOCAL_RANKS": json.dumps(_local_ranks(job, first))},
        cwd=job.script.folder,
        stop=stop_policy(job),
        starts_ranks=tuple(range(first, first + per_host)),
        has_rank_shim=has_rank_shim,
        rank_python=job.interpreter if has_rank_shim else "",
    )
    return Plan(
        launcher="jax",
        role="alone" if hosts == 1 else "leader" if job.cluster.is_leader else "follower",
        phase=Phase(name="train", main=main, needs=name_needs(job), together=True, ranks_join=True),
        world_size=world_size(job),
        notes=(*fabric.notes(job), *compat.notes(job), *_notes(job)),
        modules=("jax",) if job.script.kind != "command" else (),
    )


def _defaults(job: Job) -> dict[str, str]:
    """Return JAX's variables, which the user's win over."""
    alone = job.cluster.size == 1
    address, port = master(job)
    if alone:
        address = LOOPBACK
        port = port if job.environ.get("MASTER_PORT") else 0  # The starter finds a free one.
    host = f"[{address}]" if ":" in address else address
    # Else the coordinator, which asks nobody who he is, listens on every address of the machine.
    bind = {"JAX_COORDINATOR_BIND_ADDRESS": f"{LOOPBACK}:{port}"} if alone or on_one_machine(job) else {}
    return {
        "JAX_COORDINATOR_ADDRESS": f"{host}:{port}",
        **(bind if "JAX_COORDINATOR_ADDRESS" not in job.environ else {}),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_ENABLE_PREEMPTION_SERVICE": "0",
    }


def _local_ranks(job: Job, first: int) -> list[dict[str, str]]:
    """Return the variables of each rank of this host."""
    per_host = job.processes_per_host
    devices = _devices(job)
    return [
        {
            "RANK": str(first + local),
            "LOCAL_RANK": str(local),
            "JAX_PROCESS_ID": str(first + local),
            **({"JAX_LOCAL_DEVICE_IDS": devices[local]} if devices else {}),
        }
        for local in range(per_host)
    ]


def _devices(job: Job) -> list[str]:
    """Return the GPUs of each rank of this host, none if there is nothing to share out."""
    gpus, per_host = job.machine.gpus, job.processes_per_host
    if per_host == 1 or not gpus or "JAX_LOCAL_DEVICE_IDS" in job.environ or not _uses_gpus(job):
        return []
    if gpus % per_host:
        raise UserError(
            f"expected a number of processes that divides the host's {gpus} GPUs, found {per_host}: JAX would give "
            "each process every GPU",
            where=WHERE,
            hint="Correct TOOLKIT_PROCESSES_PER_HOST, or set JAX_PLATFORMS=cpu to compute without GPUs.",
        )
    gpus_per_rank = gpus // per_host
    return [
        ",".join(str(gpu) for gpu in range(local * gpus_per_rank, (local + 1) * gpus_per_rank))
        for local in range(per_host)
    ]


def _uses_gpus(job: Job) -> bool:
    platforms = job.environ.get("JAX_PLATFORMS", "").lower()
    return not platforms or any(name.strip() in GPU_PLATFORMS for name in platforms.split(","))


def _notes(job: Job) -> tuple[str, ...]:
    if job.settings.rank_hook == "on":
        return ()
    return (
        "jax: TOOLKIT_RANK_HOOK=off, so jax.distributed.initialize() needs num_processes and process_id from the "
        "script (JAX_NUM_PROCESSES, JAX_PROCESS_ID), and a rank that fails waits for the others up to 300 s",
    )
