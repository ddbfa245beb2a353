"""A pod of an MPIJob (kubeflow.org/v2beta1), whose launcher and workers all run `train`.

K_MPI_JOB_ROLE holds a pod's role; pods are named NAME-launcher, NAME-worker-0, ... The operator lists the hosts and
their ranks in the ConfigMap NAME-config. It mounts this hostfile in the launcher only; workers can read it if the
manifest mounts it there, too. The job ends when the launcher does, so the launcher has to be the leader: it is the
first host with runLauncherAsWorker, and not a host without it (kubeflow/mpi-operator
pkg/controller/mpi_job_controller.go, commit cbe4f8a).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from toolkit import files
from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms.place import (
    STOP_WITHIN_S,
    Place,
    cluster_of,
    expand_hosts,
    find_own_host,
    first_hosts,
    whole_number,
)

MOUNTED = "/etc/mpi/hostfile"
# Variables in which the operator gives the hostfile's path to the launcher's mpirun (Open MPI, MPICH, Intel MPI).
HOSTFILES = ("OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")
# All variables that the operator sets for that mpirun, about hosts and ssh. `train` removes them: it names the hosts to
# mpirun itself, and uses no ssh.
OPERATOR_VARIABLES = (
    *HOSTFILES,
    "OMPI_MCA_orte_set_default_slots",
    "OMPI_MCA_orte_keep_fqdn_hostnames",
    "OMPI_MCA_plm_rsh_args",
    "HYDRA_LAUNCH_EXTRA_ARGS",
    "I_MPI_PERHOST",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
)
POD = re.compile(r"(?P<name>.+)-(?:launcher|worker-\d+)")
WORKER = re.compile(r".+-worker-\d+")
# "HOST slots=N" for Open MPI, "HOST:N" for MPICH and Intel MPI.
LINE = re.compile(r"(?P<host>[^\s:]+)(?:\s+slots=(?P<slots>\d+)|:(?P<count>\d+))?")


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the pod's place; its ranks run under mpirun unless the user asks for another distribution.

    Hosts and ranks come from TOOLKIT_HOSTS and our settings, else from the hostfile.

    Raises:
        ContractError: nothing lists the hosts, the list does not contain this pod, or it contains only workers.
    """
    name = _name(settings.host or environ.get("HOSTNAME", ""))
    file = next((environ[name] for name in HOSTFILES if environ.get(name)), MOUNTED)
    listed = "TOOLKIT_HOSTS" if settings.hosts else file
    hosts, slots = (expand_hosts(settings.hosts, listed), None) if settings.hosts else _read(Path(file), name)
    if all(WORKER.fullmatch(host.partition(".")[0]) for host in hosts):
        first = f" and {name}-launcher.{name} in front" if settings.hosts else ""
        raise ContractError(
            f"expected the launcher among the job's hosts, found only workers ({first_hosts(hosts)})",
            where=listed,
            hint=f"Set runLauncherAsWorker: true in the MPIJob's spec{first}: the launcher's end is the job's, so it "
            "has to lead, and the leader runs ranks.",
        )
    return Place(
        cluster=cluster_of(hosts, find_own_host(hosts, settings, environ, listed)),
        name=name,
        stop_within_s=STOP_WITHIN_S,
        processes_per_host=slots,
        distribution="mpi",
        dropped=OPERATOR_VARIABLES,
    )


def _name(host: str) -> str:
    """Return the name of the MPIJob to which the pod *host* belongs; "NAME" if the pod's name does not tell it."""
    pod = POD.fullmatch(host.partition(".")[0])
    return pod["name"] if pod else "NAME"


def _read(file: Path, name: str) -> tuple[tuple[str, ...], int]:
    """Return (the hosts of a hostfile, the number of ranks on each)."""
    try:
        lines = [line.strip() for line in files.read(file).decode("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ContractError(
            f"expected the list of the MPIJob's hosts, found none ({reason})",
            where=str(file),
            hint=f"The operator mounts it in the launcher alone: mount the ConfigMap {name}-config at {file.parent} in "
            f"the Worker template, too (docs/orchestrators/kubeflow.md); or set TOOLKIT_HOSTS={name}-launcher.{name},"
            f"{name}-worker-[0-N].{name} in both templates.",
        ) from None
    matches = [(line, LINE.fullmatch(line)) for line in lines]
    hosts = {match["host"]: match["slots"] or match["count"] or "1" for _, match in matches if match is not None}
    wrong = next((line for line, match in matches if match is None), None)
    if wrong is not None or not hosts:
        raise ContractError(f"expected lines as HOST slots=1 or HOST:1, found {wrong or 'none'!r}", where=str(file))
    slots = sorted({whole_number(count, str(file), least=1) for count in hosts.values()})
    if len(slots) > 1:
        counts = " and ".join(map(str, slots))
        raise ContractError(f"expected the same slots for each host, found {counts}", where=str(file))
    return tuple(hosts), slots[0]
