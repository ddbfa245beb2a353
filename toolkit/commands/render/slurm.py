"""Pure: a job as a batch script for Slurm, with one `train` on each node, and a retry if the exit code allows one."""

import math
import shlex
from pathlib import Path

from toolkit.commands.render.inside import RETRIES, Choices, check
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

SCRIPT = """\
#!/bin/bash
{options}
# The same on every node: the job file on a file system that all of them see. Results go to a folder for each host.
export TOOLKIT_JOB={job}
export TOOLKIT_BASE={base}
# What the hosts of this job know each other by (docs/link.md).
export TOOLKIT_JOB_SECRET=${{TOOLKIT_JOB_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}}

# The signal is the steps'; this shell only waits for them.
trap : TERM USR1
{prepare}
srun --ntasks-per-node=1 --kill-on-bad-exit=0 {train}
code=$?

# 75: a host vanished or was not reached. A retry may help; any other failure would recur.
if [ "$code" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {retries} ]; then
  scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$code"
"""


def script(job_file: JobFile, choices: Choices, path: Path) -> str:
    """Return the batch script for *path*; *job_file* is its content.

    Raises:
        ContractError: the job asks for what Slurm does not support, or has several instance groups.
    """
    check(job_file)
    if len(job_file.groups) > 1:
        message = f"expected one instance group, found {len(job_file.groups)}"
        raise ContractError(message, where="job file", hint="Slurm gives a job's nodes in an order of its own.")
    results = path.parent / "jobs"
    # Slurm 22.05 and newer: srun does not take this option from sbatch. A whole node's task is bound to no CPU.
    train = f"--cpus-per-task={choices.cpus}" if choices.cpus else "--cpu-bind=none"
    prepare = ""
    if choices.image:
        prepare = f"\n# The container's engine makes no folder that it mounts.\nmkdir -p {shlex.quote(str(results))}\n"
        mounts = ",".join(f"{path}:{path}" for path in _list_mounts(job_file, path, results))
        train += f" --container-image={shlex.quote(choices.image)} --container-mounts={shlex.quote(mounts)}"
    train += " train"
    base = f"{shlex.quote(str(results))}/{{job}}/{{host}}"
    return SCRIPT.format(
        options="".join(f"#SBATCH --{option}\n" for option in _list_options(job_file, choices)),
        job=shlex.quote(str(path)),
        base=base,
        prepare=prepare,
        train=train,
        retries=RETRIES,
    )


def _list_mounts(job_file: JobFile, path: Path, results: Path) -> tuple[Path, ...]:
    """Return the folders of the cluster that a container needs, where they are: the job file names them so. One below
    another is left out.

    Raises:
        ContractError: a path contains what separates mounts.
    """
    folders = [path.parent, results, job_file.source]
    folders += [channel.folder for channel in job_file.channels if not channel.uri]
    folders += [job_file.checkpoints] if job_file.checkpoints is not None else []
    for folder in folders:
        if {":", ","} & set(str(folder)):
            message = f"expected a path without ':' and ',', which separate a container's mounts, found {folder}"
            raise ContractError(message, where="--image", hint="Rename the folder.")
    unique = sorted(set(folders))
    return tuple(folder for folder in unique if not any(other in folder.parents for other in unique))


def _list_options(job_file: JobFile, choices: Choices) -> list[str]:
    options = [
        f"job-name={job_file.name}",
        f"nodes={len(job_file.hosts)}",
        "ntasks-per-node=1",
        f"output={job_file.name}-%j.log",
        "open-mode=append",
        "requeue",
    ]
    if job_file.run.max_run_s is not None:
        options.append(f"time={max(1, math.ceil(job_file.run.max_run_s / 60))}")
    if choices.gpus:
        options.append(f"gpus-per-node={choices.gpus}")
    if choices.cpus:
        options.append(f"cpus-per-task={choices.cpus}")
    if choices.memory:
        options.append(f"mem={choices.memory.removesuffix('i')}")
    if not choices.cpus and not choices.memory:  # A host of the job is a node: all its CPUs, and all its memory.
        options += ["exclusive", "mem=0"]
    if choices.notice_s is not None:
        options.append(f"signal=USR1@{choices.notice_s}")
    return options
