"""Makes this host's end of the link: its port, its key, and its role as leader or follower."""

import json
import os
import socket

from toolkit import __version__, files
from toolkit.errors import ContractError, PlatformError, choose_document_error
from toolkit.job.job import Job
from toolkit.job.plan import Resolves
from toolkit.log import Log
from toolkit.train.launchers.environment import link_ports, name_needs
from toolkit.train.peers import sameness
from toolkit.train.peers.follower_link import FollowerLink
from toolkit.train.peers.frames import job_key
from toolkit.train.peers.leader_link import LeaderLink, listen
from toolkit.train.peers.protocol import Timeouts
from toolkit.train.step_times import StepTimes


def join(job: Job, log: Log, step_times: StepTimes | None) -> LeaderLink | FollowerLink:
    cluster, settings = job.cluster, job.settings
    times = Timeouts(
        heartbeat_s=settings.heartbeat_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        join_s=settings.join_s,
        finish_timeout_s=settings.finish_timeout_s,
        grace_s=job.grace_s,
    )
    key = _key(job, log)
    tag, facts = sameness.make_tag(job.spec.name, cluster.hosts), _facts(job)
    address, ports = cluster.address(cluster.leader), link_ports(job)
    if not cluster.is_leader:
        place, others = (address, ports[0]), ports[1:]
        return FollowerLink(cluster.current, cluster.leader, key, times, place, others=others, tag=tag, facts=facts)
    hosts = (cluster.leader, *(host for host in cluster.hosts if host != cluster.leader))
    listener = _listen(cluster.addresses.get(cluster.leader), ports, f"host {cluster.current}", log)
    judge = _nobody_is_slow if step_times is None else step_times.judge
    return LeaderLink(
        hosts,
        key,
        times,
        listener,
        restarts=settings.restarts,
        judge=judge,
        places=_places(job),
        tag=tag,
        facts=facts,
        rivals={host: cluster.address(host) for host in hosts[1:] if cluster.addresses.get(host) != host},
        port=ports[0],
    )


def _facts(job: Job) -> dict[str, str]:
    """Return what must be equal on all hosts, the most telling first."""
    facts = {
        sameness.VERSION: __version__,
        sameness.HOSTS: job.cluster.hosts,
        sameness.DISTRIBUTION: job.strategy.name,
        sameness.NAME: job.spec.name,
        "a hyperparameter": job.spec.hyperparameters,
        "a parameter of the platform": [job.spec.platform_values.job_name, job.spec.platform_values.parameters],
        **dict(zip(sameness.MAY_DIFFER, (job.settings.restarts, job.settings.stall_s), strict=True)),
    }
    if job.cluster.taking_part and not job.cluster.takes_part:
        del facts[sameness.DISTRIBUTION]  # This host is outside of it, whatever it is.
    return {name: sameness.make_fact(value) for name, value in facts.items()}


def _listen(address: str | None, ports: tuple[int, ...], host: str, log: Log) -> socket.socket:
    reason = ""
    for port in ports:
        try:
            listener = listen(address, port)
        except OSError as error:
            reason = reason or os.strerror(error.errno or 0)
            continue
        if port != ports[0]:
            log.warning(f"link: port {ports[0]} is taken ({reason}): using port {port}")
        return listener
    raise PlatformError(
        f"cannot listen on port {' or '.join(map(str, ports))} for the job's other hosts: {reason}",
        where=host,
        hint="Set TOOLKIT_LINK_PORT to a free port on every host, or TOOLKIT_LINK=off to run without the link.",
    )


def _nobody_is_slow(_host: str, _times: object) -> list[tuple[str, str]]:
    return []


def _places(job: Job) -> dict[str, str]:
    """Return the name or address of each host that must have an address of its own.

    Hosts known only by number (train/platforms/place.py) are left out: their names may not resolve, or to a wrong
    address.
    """
    cluster, must_resolve = job.cluster, {need.host for need in name_needs(job) if isinstance(need, Resolves)}
    addresses = {host: address for host, address in cluster.addresses.items() if address != host}
    return {host: addresses.get(host, host) for host in cluster.hosts if host in addresses or host in must_resolve}


def _key(job: Job, log: Log) -> bytes:
    settings = job.settings
    secret = settings.job_secret.encode()
    if settings.job_secret_file is not None:
        try:
            secret = files.read(settings.job_secret_file).strip()
        except OSError as error:
            raise choose_document_error(error)(
                f"expected a readable file, found none ({error.strerror})",
                where=f"TOOLKIT_JOB_SECRET_FILE: {settings.job_secret_file}",
            ) from None
        if not secret:
            raise ContractError(
                "expected a secret, found an empty file",
                where=f"TOOLKIT_JOB_SECRET_FILE: {settings.job_secret_file}",
                hint="Write the job's secret into it, the same on every host, or unset the variable",
            )
    if not secret and job.cluster.is_leader:
        log.debug("link: no TOOLKIT_JOB_SECRET; its key comes from the job's own documents, a secret would be better")
    shared = [
        job.spec.name,
        job.spec.hyperparameters,
        job.spec.platform_values.job_name,
        job.spec.platform_values.parameters,
    ]
    if job.nested:
        shared.append("nested")  # A connection to the outer `train`'s link is refused.
    return job_key(secret, job.cluster.hosts, json.dumps(shared, sort_keys=True, default=str).encode())
