"""SageMaker's data parallel library: AWS's own where it is installed (smddprun on PATH), else the open backend.

- With AWS's library: mpirun starts `smddprun python -m mpi4py SCRIPT` as sagemaker-training does
  (train/launchers/mpi.py).
- Without it: ranks under torchrun, as pytorchddp, and the old import names lead to toolkit/rank/dataparallel
  (TOOLKIT_COMPAT_PATH, docs/smddp.md). TOOLKIT_SMDDP_LAUNCHER=mpirun selects mpirun instead, for scripts that use MPI
  themselves and for images without torch.

Both ways set the variables that AWS's launcher sets (SMDATAPARALLEL_USE_HOMOGENEOUS and others), because scripts read
them. AWS's launcher is mpirun, so that scripts may know their rank by its variables (OMPI_COMM_WORLD_RANK): ranks under
torchrun have them, too.
"""

from pathlib import Path

import msgspec

from toolkit.job.job import Job
from toolkit.job.plan import Plan
from toolkit.train.launchers import compat, mpi, torchrun

HELPER = "smddprun"
SERVER_PORT = 7592
# Variables of SageMaker's mpirun, and torchrun's names for the same values.
MPI_NAMES = {
    "OMPI_COMM_WORLD_RANK": "RANK",
    "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
}


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for ranks of the data parallel library."""
    if HELPER in job.machine.programs:
        return _under_mpirun(job, run_folder, wrap=(HELPER,))
    if job.settings.smddp_launcher == "mpirun":
        return _under_mpirun(job, run_folder, wrap=())
    return _under_torchrun(job, run_folder)


def variables(job: Job) -> dict[str, str]:
    """Return the variables that AWS's launcher gives every rank (sagemaker-training 5.1.4, smdataparallel.py), without
    the instance type, which the platform sets."""
    if job.cluster.size == 1:
        return {"SMDATAPARALLEL_USE_SINGLENODE": "1"}
    return {
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": job.cluster.leader,
        "SMDATAPARALLEL_SERVER_PORT": str(SERVER_PORT),
    }


def _under_torchrun(job: Job, run_folder: Path) -> Plan:
    changed = torchrun.plan(job, run_folder)
    changed = changed.with_main(environ={**variables(job), **changed.phase.main.environ}, rank_aliases=MPI_NAMES)
    return msgspec.structs.replace(
        changed, launcher="smddp", choice=_choice("torchrun"), notes=(*changed.notes, *_notes(job))
    )


def _under_mpirun(job: Job, run_folder: Path, wrap: tuple[str, ...]) -> Plan:
    # train/launchers/fabric.py sets RDMAV_FORK_SAFE and FI_PROVIDER if there are EFA devices.
    changed = mpi.plan_for(
        job,
        run_folder,
        name="smddp",
        custom_options=job.strategy.mpirun_options,
        extra_environ=variables(job),
        wrap=wrap,
    )
    if wrap:
        return msgspec.structs.replace(changed, choice="smddp: AWS's library is installed; mpirun starts smddprun")
    return msgspec.structs.replace(changed, choice=_choice("mpirun"), notes=(*changed.notes, *_notes(job)))


def _choice(under: str) -> str:
    return f"smddp: AWS's library is not installed (no {HELPER} on PATH); {under} starts the open backend"


def _notes(job: Job) -> tuple[str, ...]:
    """Return notes on features that the job asks for and the open backend lacks."""
    notes = []
    if "smddp" not in compat.names(job):
        notes.append("smddp: TOOLKIT_COMPAT=off, so smdistributed cannot be imported unless the image has its own")
    elif job.settings.rank_hook == "off":
        notes.append("smddp: TOOLKIT_RANK_HOOK=off, so smdistributed cannot be imported unless the image has its own")
    return tuple(notes)
