"""Makes the job of a command line of torchrun (docs/torchrun.md): no documents, no /opt/ml, the current folder as code.

It is a platform as others are for `train`: its place comes from the line, and for c10d from the hosts that meet.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from toolkit import files, folders
from toolkit.errors import UserError
from toolkit.job.base_folders import below
from toolkit.job.cluster import HOMOGENEOUS, Cluster, Group
from toolkit.job.documents.folder_names import is_folder_name
from toolkit.job.exports import Exports
from toolkit.job.job import Folders, Job
from toolkit.job.machine import Machine
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.job.torchrun_line import TorchrunLine
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.peers import numbering
from toolkit.train.platforms import generic, outcome_files
from toolkit.train.platforms.assemble import assemble
from toolkit.train.platforms.place import Place, cluster_of, job_name, number_hosts
from toolkit.train.platforms.table import Platform
from toolkit.train.platforms.torchrun_launch import DEFAULT_ID, TorchrunLaunch
from toolkit.train.platforms.torchrun_options import WHERE
from toolkit.train.probe.ask import find_program

# What ranks get from their launcher alone: values around `train` are another job's, or wrong.
GIVEN_BY_LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def make_platform(launch: TorchrunLaunch, base: Path) -> Platform:
    """Return the platform of the job that *launch* describes; what it writes goes below *base*."""
    return Platform(
        name="torchrun",
        folders=partial(_folders, launch, base),
        clear_stale=generic.clear_stale,
        read=partial(read, launch, base),
        report=outcome_files.report,
    )


def read(
    launch: TorchrunLaunch,
    base: Path,
    environ: Mapping[str, str],
    settings: Settings,
    machine: Machine,
    log: Log,
    *,
    interpreter: str,
    needs_script: bool = True,  # noqa: ARG001 - every platform is read alike
    places: Mapping[str, str] = {},  # noqa: ARG001
) -> Job:
    """Return the job of *launch*. Hosts that do not know their numbers meet first.

    Raises:
        ContractError: an option does not suit this host or the other hosts.
        UserError: there is no such script.
        PlatformError: the hosts did not meet.
    """
    _check_script(launch, environ)
    processes = launch.count_processes(machine)
    settings = _settings(launch, settings)
    node_rank = launch.node_rank if launch.node_rank is not None else _find_number(launch, settings, log)
    job = assemble(
        JobSpec(
            name=_name(launch),
            entry=launch.script.entry,
            entry_from=WHERE,
            strategy=Strategy(name="torch_distributed", processes_per_host=processes),
            requirements=False,
            argument_style="none",
        ),
        _place(launch, node_rank),
        settings,
        machine,
        folders=_folders(launch, base, environ),
        environ=environ,
        interpreter=interpreter,
        log=log,
    )
    return msgspec.structs.replace(
        job,
        script=launch.script,
        arguments=launch.arguments,
        # A script is started many times under its name; several hosts know nothing else in common.
        exports=_with_own_run(job.exports, base.name) if launch.hosts == 1 else job.exports,
        torchrun=TorchrunLine(
            module=launch.module,
            options=launch.options if launch.run_id != DEFAULT_ID else (*launch.options, *_own_id(launch, base)),
            max_restarts=settings.restarts,
            rank_output=launch.rank_output(processes, node_rank, base),
        ),
    )


def _with_own_run(exports: Exports, run: str) -> Exports:
    """Return *exports* with *run* as the ID of the run, unless the user has set one."""
    return exports if exports.run else msgspec.structs.replace(exports, run=run)


def _own_id(launch: TorchrunLaunch, base: Path) -> tuple[str, ...]:
    """Return the options that give a job of one host an id of its own, as torchrun does; () for several hosts."""
    return ("--rdzv_id", base.name) if launch.hosts == 1 else ()


def _folders(launch: TorchrunLaunch, base: Path, environ: Mapping[str, str]) -> Folders:
    return msgspec.structs.replace(below(str(base), environ), code=launch.script.folder)


def _check_script(launch: TorchrunLaunch, environ: Mapping[str, str]) -> None:
    """Raise UserError if the script is a file that does not exist, or no program: each rank would only say so."""
    script = launch.script
    if script.kind == "command" and "/" not in script.entry:
        path = environ.get("PATH", os.defpath)
        if find_program(script.entry, path) is None:
            raise UserError(
                f"--no-python: expected a program of PATH, found no {script.entry!r} in {path}", where=WHERE
            )
        return
    if script.kind != "module" and not folders.exists(script.folder / script.entry):
        raise UserError(
            f"expected a script, found nothing at {script.folder / script.entry}",
            where=WHERE,
            hint="Options of torchrun stand before the script; a module needs -m.",
        )


def _settings(launch: TorchrunLaunch, settings: Settings) -> Settings:
    """Return *settings* with what the line says; a variable of the toolkit wins, which the line cannot know."""
    chosen = msgspec.structs.replace(
        settings,
        restarts=settings.restarts or launch.max_restarts,
        grace_s=settings.grace_s if launch.shutdown_s is None or settings.grace_s is not None else launch.shutdown_s,
        join_s=settings.join_s if launch.join_s is None else launch.join_s,
    )
    if chosen.job_secret or chosen.job_secret_file or launch.hosts == 1:
        return chosen
    return msgspec.structs.replace(chosen, job_secret=_key(launch, "").hex())


def _find_number(launch: TorchrunLaunch, settings: Settings, log: Log) -> int:
    meeting = launch.meeting
    assert meeting is not None
    secret = settings.job_secret
    if settings.job_secret_file is not None:
        secret = files.read(settings.job_secret_file).decode(errors="replace").strip()
    place = numbering.MeetingPlace(
        host=meeting.host,
        port=meeting.port,
        key=_key(launch, secret),
        hosts=launch.hosts,
        job=_name(launch),
        name=os.uname().nodename,
        wish=launch.wish,
        is_host=meeting.is_host,
        within_s=settings.join_s,
    )
    number = numbering.find_number(place, log)
    log.info(f"this host is number {number} of {launch.hosts}")
    return number


def _name(launch: TorchrunLaunch) -> str:
    return job_name(launch.name) or "job"


def _key(launch: TorchrunLaunch, secret: str) -> bytes:
    return numbering.meeting_key(launch.run_id, launch.port, secret)


def _place(launch: TorchrunLaunch, node_rank: int) -> Place:
    dropped = (*GIVEN_BY_LAUNCHER, *launch.variables)
    if launch.hosts == 1:
        host = os.uname().nodename if is_folder_name(os.uname().nodename) else "localhost"
        port = {"MASTER_PORT": str(launch.port)} if launch.port else {}
        return Place(cluster=_grouped(cluster_of((host,), host)), dropped=dropped, environ=port, stopped_by_engine=True)
    hosts, addresses = number_hosts(launch.hosts, node_rank, launch.address)
    return Place(
        cluster=_grouped(cluster_of(hosts, hosts[node_rank], addresses)),
        dropped=dropped,
        environ={"MASTER_ADDR": launch.address, "MASTER_PORT": str(launch.port)},
        stopped_by_engine=True,
    )


def _grouped(cluster: Cluster) -> Cluster:
    """Return *cluster* with its hosts as one group."""
    group = Group(name=HOMOGENEOUS, instance_type=cluster.instance_type, hosts=cluster.hosts)
    return msgspec.structs.replace(cluster, groups=(group,))
