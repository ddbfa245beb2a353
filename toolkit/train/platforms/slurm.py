"""A task of a Slurm job step: `srun --ntasks-per-node=1 train` starts one on each node.

Variables as srun sets them (https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES); seen with Slurm
22.05. scancel and the time limit send SIGTERM and, KillWait seconds later, SIGKILL; a notice asked for with
`--signal=USR1@SECONDS` reaches the script as SIGUSR1.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms.place import Place, cluster_of, expand_hosts, job_name, whole_number

ONE_EACH = re.compile(r"1(\(x\d+\))?")
HINT = "Start it with `srun --ntasks-per-node=1 train`, as `toolkit render slurm` does."
# Jobs on one node need different ports: each gets a pair by its job id, MASTER_PORT and below it the link's port.
FIRST_PORT = 20_002
PORTS = 5_999


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the task's place among the step's nodes.

    Raises:
        ContractError: srun did not start it with one task on each node, or the variables contradict each other.
    """
    variable = "SLURM_STEP_NODELIST"
    nodes = environ.get(variable, "")
    if not nodes:
        variable = "SLURM_JOB_NODELIST"
        nodes = environ.get(variable, "")
        if environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
            raise ContractError("expected a step of the job, found none", where="SLURM_STEP_NODELIST", hint=HINT)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if not ONE_EACH.fullmatch(tasks):
        message = f"expected one task on each node, found {tasks}"
        raise ContractError(message, where="SLURM_STEP_TASKS_PER_NODE", hint=HINT)
    hosts = expand_hosts(nodes, variable)
    _check_components(environ, hosts)
    node = whole_number(environ.get("SLURM_NODEID", "0"), "SLURM_NODEID", below=len(hosts))
    job = environ["SLURM_JOB_ID"]
    port = FIRST_PORT + 2 * (int(job) % PORTS if job.isascii() and job.isdigit() and len(job) <= 20 else 0)
    return Place(
        cluster=cluster_of(hosts, hosts[node]),
        name=job_name(environ.get("SLURM_JOB_NAME", "")[:40], job),
        environ={"MASTER_PORT": str(port)} if len(hosts) > 1 else {},
        notes=(*_notes(environ), *("TOOLKIT_HOSTS is not read: Slurm lists the step's nodes",) * bool(settings.hosts)),
    )


def _notes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes for the log: how often Slurm requeued the job, and when its time limit ends it."""
    notes = []
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    if restarts != "0":
        notes.append(f"Slurm has requeued this job, {restarts} times so far")
    with suppress(ValueError, OverflowError, OSError):  # Not set, or no time at all.
        from datetime import datetime, timezone

        ends = datetime.fromtimestamp(int(environ.get("SLURM_JOB_END_TIME", "")), timezone.utc)
        notes.append(f"Slurm ends this job at {ends:%Y-%m-%d %H:%M:%S} UTC")
    components = environ.get("SLURM_HET_SIZE", "1")
    if components != "1":
        notes.append(f"Slurm's job is heterogeneous: the nodes of the other components of {components} take no part")
    return tuple(notes)


def _check_components(environ: Mapping[str, str], hosts: tuple[str, ...]) -> None:
    """Raise ContractError for a step over several components of a heterogeneous job: Slurm lists one component's nodes
    in each of them, and counts the nodes of all."""
    node = environ.get("SLURM_NODEID", "0")
    size = environ.get("SLURM_HET_SIZE", "1")
    if size != "1" and node.isascii() and node.isdigit() and len(node) <= 20 and int(node) >= len(hosts):
        raise ContractError(
            f"expected a step in one component of the heterogeneous job, found node {node} of a component with"
            f" {len(hosts)}: the step has several",
            where="SLURM_NODEID",
            hint="Start it with `srun --het-group=0 --ntasks-per-node=1 train`, or give the job one component.",
        )
