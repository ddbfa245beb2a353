"""Pure: chooses the compat folders (toolkit/rank/compat) for a job, by its distribution and TOOLKIT_COMPAT."""

from pathlib import Path

import toolkit
from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.job.strategy import STRATEGIES

FOLDER = Path(toolkit.__file__).parent / "rank" / "compat"
NAMES = ("smddp", "smp", "smppy", "torch_xla")  # Folders of toolkit/rank/compat, as TOOLKIT_COMPAT names them.
# The compat folders that a distribution gets by default.
BROUGHT = {"smddp": ("smddp",)}
# sagemaker-python-sdk 2.x: debugger/framework_profile.py, Profiler(cpu_profiling_duration, file_rotation_interval).
PROFILER_KEYS = ("CPUProfilingDuration", "SMPFileRotationSecs")


def names(job: Job) -> tuple[str, ...]:
    """Return the compat folders for *job*'s script; on a host outside the distribution, only those of TOOLKIT_COMPAT.

    A job of SageMaker's model parallel library gets smp and never smddp, which that library cannot be combined with.

    Raises:
        ContractError: TOOLKIT_COMPAT holds an unknown name.
    """
    settings_names = [name for name in job.settings.compat.replace(",", " ").split() if name]
    if settings_names == ["off"]:
        return ()
    for name in settings_names:
        if name not in NAMES:
            raise ContractError(
                f"expected off or names among {', '.join(NAMES)}, found {name!r}",
                where="TOOLKIT_COMPAT",
                hint="Correct the variable or unset it.",
            )
    parallel = asks_for_model_parallel(job)
    brought = ("smp",) if parallel else BROUGHT.get(job.strategy.name, ())
    folders = dict.fromkeys((*brought, *(("smppy",) if asks_for_profiler(job) else ()), *settings_names))
    return tuple(name for name in folders if name != "smddp" or not parallel)


def asks_for_profiler(job: Job) -> bool:
    """True if profilerconfig.json asks for SageMaker Profiler: the keys of the SDK's Profiler, not of the Debugger."""
    return job.monitor is not None and any(name in job.monitor.parameters for name in PROFILER_KEYS)


def asks_for_model_parallel(job: Job) -> bool:
    """True for a job of SageMaker's model parallel library: mp_parameters, as its SDK sends them, under mpirun or
    torchrun. Not for release 2 in an image that holds it: such a job starts like any other."""
    starts = STRATEGIES[job.strategy.name].launcher in ("mpi", "torchrun")
    has_parameters = job.spec.hyperparameters.get("mp_parameters", {}) not in ({}, None, "")
    return starts and has_parameters and not has_release_2(job)


def has_release_2(job: Job) -> bool:
    """True if the job is one of release 2 of that library, and the image holds it (torch.sagemaker)."""
    if not job.machine.torch_sagemaker:
        return False
    from toolkit.parallelism.release_2 import is_release_2

    return is_release_2(job.spec.hyperparameters.get("mp_parameters"))


def notes(job: Job) -> tuple[str, ...]:
    """Return notes on compat folders that the job asks for but does not get."""
    if "smddp" not in job.settings.compat or not asks_for_model_parallel(job):
        return ()
    return ("TOOLKIT_COMPAT: smddp is left out, because the job asks for smdistributed.modelparallel (mp_parameters)",)


def variables(job: Job) -> dict[str, str]:
    """Return the variables that give the rank hook the compat folders; none without such folders."""
    folders = ":".join(str(FOLDER / name) for name in names(job))
    return {"TOOLKIT_COMPAT_PATH": folders} if folders else {}
