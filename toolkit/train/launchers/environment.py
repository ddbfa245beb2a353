"""Pure: the environment of the processes that a launcher starts. The user's values win; we add only missing ones."""

import zlib
from pathlib import Path

import toolkit
from toolkit.errors import ContractError
from toolkit.job.arguments import arguments, check
from toolkit.job.job import Job
from toolkit.job.plan import Need, Resolves, StopPolicy
from toolkit.job.variables import variables
from toolkit.train.launchers import compat, compiler_variables, fabric, profiling

MASTER_PORT = 7777
LOOPBACK = "127.0.0.1"
# Below the kernel's ephemeral ports (from 32768) and Kubernetes' node ports (from 30000).
OWN_PORTS = range(20000, 30000)
SPARE_PORTS = 5
# How far the link's port of a job that a framework plug-in starts is from its outer `train`'s.
NESTED_APART = 50
HOOK = Path(toolkit.__file__).parent / "rank" / "hook" / "site"


def tokens(job: Job) -> tuple[str, ...]:
    """Return the script's arguments.

    Raises:
        UserError: an argument is too long for execve, or holds a NUL.
    """
    style = job.argument_style if job.script is None else job.script.argument_style
    words = (*arguments(job.spec.hyperparameters, style), *job.spec.arguments)
    argv = words if job.arguments is None else job.arguments
    check(argv)
    return argv


def environment(job: Job, arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the complete environment of *job*'s script: that of `train`, the contract's variables, and ours."""
    if job.torchrun is None:
        environ = {**job.environ, **variables(job, arguments), **job.variables}
    else:  # As torchrun's ranks have it: none of SageMaker's variables, no other PYTHONPATH.
        environ = {**job.environ, "TOOLKIT_OUTPUT": str(job.folders.output), "TOOLKIT_HOST_NAME": job.cluster.current}
    # With faulthandler, a crash in native code (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL) prints the Python stack.
    added = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    added |= rendezvous(job)
    if job.machine.opal_prefix:
        added["OPAL_PREFIX"] = job.machine.opal_prefix
    if job.torchrun is None:
        added.update(fabric.variables(job))
    for name, value in added.items():
        environ.setdefault(name, value)
    if chooses_port(job):
        environ["MASTER_PORT"] = added["MASTER_PORT"]
    # SageMaker's SDK v3 tells scripts the port under this name, too.
    if job.port and environ.get("SM_MASTER_PORT") == str(MASTER_PORT):
        environ["SM_MASTER_PORT"] = str(job.port)
    for name in ("TOOLKIT_COMPAT_PATH", "TOOLKIT_PROFILE_WINDOW", "TOOLKIT_COMPILER"):  # Left by an outer `train`.
        environ.pop(name, None)
    environ.update(compat.variables(job) | profiling.variables(job) | compiler_variables.variables(job))
    if job.settings.rank_hook == "on":
        environ["PYTHONPATH"] = ":".join(part for part in (str(HOOK), environ.get("PYTHONPATH", "")) if part)
    return environ


def rendezvous(job: Job) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT, as AWS's PyTorch images set them, also for one host.

    For one host the address is loopback, because the host's name resolves only on the platform. Frameworks whose ranks
    run without torchrun (Hugging Face's Trainer and DeepSpeed under mpirun) fail without the two.
    """
    alone = len(job.cluster.hosts) == 1
    address = LOOPBACK if alone else job.cluster.address(job.cluster.leader)
    return {"MASTER_ADDR": address, "MASTER_PORT": str(job.port or MASTER_PORT)}


def master(job: Job) -> tuple[str, int]:
    """Return the rendezvous (address, port): MASTER_ADDR and MASTER_PORT if the user set them, else the leader and
    the port that `train` found free, else 7777.

    Raises:
        ContractError: MASTER_PORT is not a port number. On one host 0 is one: any that is free.
    """
    port = job.environ.get("MASTER_PORT", "").strip()
    address = job.environ.get("MASTER_ADDR") or job.cluster.address(job.cluster.leader)
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if number in range(1, 65536):
        return address, number
    if not chooses_port(job) and port:
        who, hint = "ranks", "Set a free port, or unset it: train finds one"
        if len(job.cluster.hosts) > 1:
            who, hint = "hosts", "Set the same free port on every host, or unset it"
        message = f"expected a port, 1 to 65535, at which the job's {who} meet, found {port[:40]!r}"
        raise ContractError(message, where="MASTER_PORT", hint=hint)
    return address, job.port or MASTER_PORT


def chooses_port(job: Job) -> bool:
    """True if `train` chooses the rendezvous port: the job has one host, and the user has set no port."""
    return len(job.cluster.hosts) == 1 and job.environ.get("MASTER_PORT", "").strip() in ("", "0")


def link_ports(job: Job) -> tuple[int, ...]:
    """Return the port on which the leader listens for the link, then the ports to try, in order, if it is in use.

    The fallback ports are far from the first, because the job's other ports are next to it: the rendezvous above it,
    TensorFlow's servers above that. The last fallbacks are computed from the job's name and hosts, so each host
    computes the same ones, and other jobs on the same machine are unlikely to use all of them.
    """
    meets = master(job)[1]
    port = job.settings.link_port or (meets - 1 if meets > 1 else meets + 1)
    if job.nested:  # The outer `train` has the usual ones.
        port += -NESTED_APART if port > 1024 + NESTED_APART else NESTED_APART
    seed = zlib.crc32(
        "\n".join((job.spec.name, *job.cluster.hosts, *("nested",) * job.nested)).encode("utf-8", "replace")
    )
    fallbacks = (OWN_PORTS.start + (seed + index * 1999) % len(OWN_PORTS) for index in range(SPARE_PORTS))
    others = (other for other in (port - 100, port - 200, *fallbacks) if other > 1024 and other not in (meets, port))
    return port, *dict.fromkeys(others)


def name_needs(job: Job) -> tuple[Need, ...]:
    """Return a need for each host name that must resolve. A single host, Studio's local mode and hosts with an address
    need none."""
    if len(job.cluster.hosts) == 1 or job.environ.get("SM_STUDIO_LOCAL_MODE", "").lower() == "true":
        return ()
    hosts = (host for host in job.cluster.hosts if host not in job.cluster.addresses)
    return tuple(Resolves(host=host, within_s=job.settings.join_s) for host in hosts)


def on_one_machine(job: Job) -> bool:
    """True if all hosts of the job run on one machine (`toolkit run`) and so share its ports."""
    return job.cluster.size > 1 and any(address.startswith("127.") for address in job.cluster.addresses.values())


def stop_policy(job: Job) -> StopPolicy:
    """Return how `train` stops the script."""
    return StopPolicy(grace_s=job.grace_s)
