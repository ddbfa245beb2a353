"""Checks the network: the other hosts' names, the rendezvous port, the link's port and the interface."""

import errno
import os
import socket
import threading
import time
from collections.abc import Sequence

from toolkit import files
from toolkit.commands.check.result import CheckResult, Status
from toolkit.job.job import Job
from toolkit.job.plan import Plan, Resolves
from toolkit.job.strategy import STRATEGIES
from toolkit.train.launchers import fabric
from toolkit.train.launchers.environment import link_ports, master
from toolkit.train.probe.port import holder, refused

RESOLVE_WITHIN_S = 2.0
NAMES_SHOWN = 4


def check(job: Job, plan: Plan) -> tuple[CheckResult, ...]:
    """Return the results for the network, none for a job of one host."""
    if len(job.cluster.hosts) == 1:
        return ()
    return (names(job, plan), rendezvous(job, plan), *link(job), interface(job))


def names(job: Job, plan: Plan, *, within_s: float = RESOLVE_WITHIN_S) -> CheckResult:
    """Return whether every name that `train` would wait for resolves; all are looked up at once."""
    hosts = [need.host for phase in plan.phases for need in phase.needs if isinstance(need, Resolves)]
    if not hosts:
        pairs = _listed([f"{host} {job.cluster.address(host)}" for host in job.cluster.hosts])
        return CheckResult(name="host names", status="ok", found=f"none has to resolve ({pairs})")
    addresses = resolve(hosts, within_s=within_s)
    missing = [host for host in hosts if host not in addresses]
    if not missing:
        pairs = _listed([f"{host} {' or '.join(addresses[host])}" for host in hosts])
        # One of several may be shared: that of a bridge of containers, which each machine has.
        if len({frozenset(host_addresses) for host_addresses in addresses.values()}) < len(hosts):
            return CheckResult(
                name="host names",
                status="warn",
                found=f"two hosts have the same address ({pairs})",
                advice="Right only for hosts that are one machine; train refuses others. Correct the names, or give the"
                " addresses as TOOLKIT_HOST_ADDRESSES=HOST=ADDRESS,...",
            )
        return CheckResult(name="host names", status="ok", found=pairs)
    return CheckResult(
        name="host names",
        status="fail",
        found=f"{_listed(missing)} {'does' if len(missing) == 1 else 'do'} not resolve within {within_s:g} s",
        advice=f"train would wait for {job.settings.join_s:g} s. Start all hosts in one network under these names,"
        " or give their addresses as TOOLKIT_HOST_ADDRESSES=HOST=ADDRESS,...",
    )


def resolve(hosts: Sequence[str], *, within_s: float) -> dict[str, tuple[str, ...]]:
    """Return the addresses, in the system's order, of each host that resolves within *within_s*.

    Each host gets its own thread, because getaddrinfo waits half a minute for a name server that does not answer. We do
    not wait for late threads.
    """
    addresses: dict[str, tuple[str, ...]] = {}

    def ask(host: str) -> None:
        try:
            # Bytes: for a string, getaddrinfo imports the codec "idna", which fails if two threads import it at once.
            entries = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
            addresses[host] = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError):
            pass  # UnicodeError: the name has a character that UTF-8 cannot encode.

    threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
    ends_s = time.monotonic() + within_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(ends_s - time.monotonic(), 0))
    return dict(addresses)


def rendezvous(job: Job, plan: Plan) -> CheckResult:
    """Return whether the leader can open the rendezvous port; other hosts cannot see it."""
    address, port = master(job)
    endpoint = f"{address}:{port}"
    if not job.cluster.is_leader:
        return CheckResult(name="port", status="ok", found=f"{endpoint} is for {job.cluster.leader} to open")
    reason = refused(port)
    if reason:
        advice = "Free it, or set MASTER_PORT to another port on every host"
        needed = plan.launcher != "script" and STRATEGIES[job.strategy.name].needs_rendezvous_port
        status: Status = "fail" if needed else "warn"
        finding = f"{port} cannot be opened ({reason})" + _held(port)
        return CheckResult(name="port", status=status, found=finding, advice=advice)
    if _is_elsewhere(address):
        return CheckResult(
            name="port",
            status="warn",
            found=f"{port} is free, but {address} is no address of this host, the leader",
            advice="Right behind a service or address translation; otherwise correct MASTER_ADDR",
        )
    return CheckResult(name="port", status="ok", found=f"{endpoint} is free")


def link(job: Job) -> tuple[CheckResult, ...]:
    """Return whether the leader can open the link's port, and whether the job's secret can be read."""
    settings = job.settings
    if settings.link == "off":
        return ()
    if settings.job_secret_file is not None and not os.access(settings.job_secret_file, os.R_OK):
        finding = f"TOOLKIT_JOB_SECRET_FILE: {settings.job_secret_file} cannot be read"
        return (CheckResult(name="link", status="fail", found=finding, advice="Mount it, readable for this user"),)
    if settings.job_secret_file is not None and not files.read(settings.job_secret_file).strip():
        finding = f"TOOLKIT_JOB_SECRET_FILE: {settings.job_secret_file} is empty"
        advice = "Write the job's secret into it, the same on every host, or unset the variable"
        return (CheckResult(name="link", status="fail", found=finding, advice=advice),)
    ports = link_ports(job)
    port = ports[0]
    if not job.cluster.is_leader:
        finding = f"port {port} is for {job.cluster.leader} to open"
        return (CheckResult(name="link", status="ok", found=finding),)
    reason = refused(port)
    if reason:
        finding = f"port {port} cannot be opened ({reason})" + _held(port)
        other = next((candidate for candidate in ports[1:] if not refused(candidate)), None)
        advice = "Free it, or set TOOLKIT_LINK_PORT to another port on every host"
        if other is not None:
            advice += f"; else train uses port {other}, which must then be open between the hosts"
        return (CheckResult(name="link", status="fail" if other is None else "warn", found=finding, advice=advice),)
    return (CheckResult(name="link", status="ok", found=f"port {port} is free"),)


def _held(port: int) -> str:
    by = holder(port)
    return f": {by} listens on it" if by else ""


def _is_elsewhere(address: str) -> bool:
    """True if *address* resolves, but to no address of this host."""
    addresses = resolve([address], within_s=RESOLVE_WITHIN_S).get(address, ())
    return bool(addresses) and all(_is_foreign(numeric) for numeric in addresses)


def _is_foreign(numeric: str) -> bool:
    family = socket.AF_INET6 if ":" in numeric else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.bind((numeric, 0))
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    return False


def interface(job: Job) -> CheckResult:
    """Return the interface that NCCL and gloo are set to use."""
    name, note = fabric.interface(job)
    configured = job.environ.get("NCCL_SOCKET_IFNAME")
    finding = f"{configured} (NCCL_SOCKET_IFNAME)" if configured else f"{name}"
    if job.machine.fabric != "tcp":
        finding += f", {job.machine.fabric} devices"
    if not note or configured:
        return CheckResult(name="interface", status="ok", found=finding)
    advice = "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the one that reaches the other hosts"
    return CheckResult(name="interface", status="warn", found=note, advice="" if name else advice)


def _listed(words: list[str]) -> str:
    more = len(words) - NAMES_SHOWN
    return ", ".join(words[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
