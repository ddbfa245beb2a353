"""Pure: the place where a job runs, from an orchestrator's variables: its hosts, which of them this is, its limits."""

import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from toolkit.errors import ContractError
from toolkit.job.cluster import Cluster
from toolkit.job.strategy import StrategyName
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.settings import MOST, Settings

# The default of Kubernetes' terminationGracePeriodSeconds and of Slurm's KillWait; a container cannot read either
# (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle, https://slurm.schedmd.com/slurm.conf.html).
STOP_WITHIN_S = 30.0
# The default of `docker stop` and `podman stop` without --stop-timeout or -t, which a container cannot read either
# (https://docs.docker.com/reference/cli/docker/container/stop).
ENGINE_STOP_WITHIN_S = 10.0
MOST_HOSTS = 100_000
# Characters that are replaced by "-" in the names of jobs and folders.
_ODD = lazy(r"[^A-Za-z0-9]+")
_RANGE = lazy(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


class Place(Record, frozen=True, kw_only=True):
    """The place of a job: the facts that an orchestrator gives to one of its hosts."""

    cluster: Cluster
    """The hosts, before it is known which take part in the distribution."""
    name: str = ""
    """The job's name; "": the orchestrator gives none."""
    resources: dict[str, Any] = {}
    """SageMaker's resourceconfig.json, unchanged."""
    source: str = ""
    """The path of resourceconfig.json, for errors."""
    stop_within_s: float = STOP_WITHIN_S
    """The time from SIGTERM to SIGKILL."""
    stopped_by_engine: bool = False
    """If this is a container, its engine stops the job."""
    stopped_is_success: bool = False
    """A script that ends with 0 after SIGTERM has succeeded."""
    processes_per_host: int | None = None
    """The number of ranks on each host; None: decided by devices."""
    distribution: StrategyName | None = None
    """Used for several ranks if the user asks for no distribution."""
    environ: dict[str, str] = {}
    """Variables to add unless set."""
    dropped: tuple[str, ...] = ()
    """Variables to remove."""
    model: str = ""
    """The orchestrator's own folder for the model; "": the base's."""
    checkpoints: str = ""
    """The orchestrator's own folder for checkpoints; "": the base's."""
    sidecar: str = ""
    """The program that reports the job's progress to the orchestrator (Job)."""
    notes: tuple[str, ...] = ()
    """Notes for the log."""


def cluster_of(hosts: tuple[str, ...], current: str, addresses: dict[str, str] | None = None) -> Cluster:
    """Return a cluster of *hosts* on the network of the default route."""
    return Cluster(current=current, hosts=hosts, addresses=addresses or {}, interface="")


def expand_hosts(text: str, source: str) -> tuple[str, ...]:
    """Return the hosts of a list in Slurm's notation: "n[1-2,7],login,r[1-2]s[01-02]", in its order.

    Numbers are padded to the width of their range's first number.

    Raises:
        ContractError: the text is not such a list, or has more than 100,000 hosts; *source* names the variable.
    """
    names = (host for part in _parts(text, source) for host in _names(part, source))
    hosts = dict[str, None]()
    for host in islice(names, MOST_HOSTS + 1):
        if host in hosts:
            raise ContractError(f"expected each host once, found {_short(host)} twice", where=source)
        hosts[host] = None
    if len(hosts) > MOST_HOSTS:
        raise ContractError(f"expected at most {MOST_HOSTS:,} hosts, found more in {_short(text)}", where=source)
    if not hosts:
        raise ContractError("expected hosts, as algo-1,algo-2 or algo-[1-2], found none", where=source)
    return tuple(hosts)


def listed_hosts(
    settings: Settings, environ: Mapping[str, str], index: str | None = None
) -> tuple[tuple[str, ...], str] | None:
    """Return (hosts, current) from TOOLKIT_HOSTS, None without it.

    The current host is TOOLKIT_HOST, else the one at *index* (the orchestrator's variable), else the one that
    `find_own_host` finds.

    Raises:
        ContractError: the list does not contain the current host.
    """
    if not settings.hosts:
        return None
    hosts = expand_hosts(settings.hosts, "TOOLKIT_HOSTS")
    if len(hosts) == 1 and not settings.host:
        return hosts, hosts[0]
    if settings.host or not index:
        return hosts, find_own_host(hosts, settings, environ)
    return hosts, hosts[whole_number(index, "the host's index", below=len(hosts))]


def find_own_host(
    hosts: tuple[str, ...], settings: Settings, environ: Mapping[str, str], listed: str = "TOOLKIT_HOSTS"
) -> str:
    """Return which of *hosts*, from the variable or file *listed*, is this one.

    It is the one named TOOLKIT_HOST, else like this machine (HOSTNAME, or the kernel's name, because shells do not
    export HOSTNAME). Names are compared whole, then up to their first dots.

    Raises:
        ContractError: *hosts* does not contain this host.
    """
    name = settings.host or environ.get("HOSTNAME") or os.uname().nodename
    return _named(hosts, name, "TOOLKIT_HOST" if settings.host else "HOSTNAME", listed)


def whole_number(text: str, source: str, *, below: int | None = None, least: int = 0) -> int:
    """Return *text*, the value of the variable *source*, as a whole number.

    Raises:
        ContractError: it is not a whole number, or outside [*least*, *below*).
    """
    below = MOST + 1 if below is None else below
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) < below:
        return int(text)
    raise ContractError(f"expected a whole number, {least} to {below - 1:,}, found {text[:40]!r}", where=source)


def json_object(text: str, source: str, expected: str) -> dict[str, Any]:
    """Return the JSON object in *text*, the value of the variable *source*; NaN and Infinity count as JSON.

    Raises:
        ContractError: it is none; the message shows its beginning. *expected* describes it.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ContractError(f"expected {expected}, found {_short(text)}", where=source)
    return content


def number_hosts(count: int, rank: int, leader: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (hosts, addresses) for a job of which only the leader's address is known; hosts are node-0, node-1, ..."""
    hosts = tuple(f"node-{i}" for i in range(count))
    current = hosts[rank]  # The caller has checked that rank < count.
    return hosts, {**{host: host for host in hosts}, current: current, hosts[0]: leader}


def job_name(*parts: str) -> str:
    """Return *parts* as one name of letters, digits and inner dashes, at most 63 characters."""
    return "-".join(_ODD.sub("-", part).strip("-") for part in parts if part)[:63].strip("-")


def _named(hosts: tuple[str, ...], name: str, source: str, listed: str) -> str:
    if name in hosts:
        return name
    short = [host for host in hosts if host.partition(".")[0] == name.partition(".")[0]]
    if len(short) == 1:
        return short[0]
    raise ContractError(
        f"expected one of {listed} ({first_hosts(hosts)}), found {name!r}",
        where=source,
        hint="Set TOOLKIT_HOST to this host's name among them.",
    )


def first_hosts(hosts: tuple[str, ...]) -> str:
    """Return the first eight of *hosts* as text for messages."""
    return ", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else "")


def _parts(text: str, source: str) -> list[str]:
    """Return *text* split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text + ","):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
        if depth not in (0, 1):
            break
    if depth:
        raise ContractError(f"expected every [ to be closed once, found {_short(text)}", where=source)
    return [part for part in parts if part]


def _names(part: str, source: str) -> Iterator[str]:
    """Yield the names that *part* expands to; its last range varies fastest."""
    pieces: list[list[str]] = []
    while part:
        head, bracket, rest = part.partition("[")
        inside, _, part = rest.partition("]")
        pieces.append([head])
        if bracket:
            pieces.append([number for span in inside.split(",") for number in _numbers(span.strip(), source)])
    return map("".join, product(*pieces))


def _numbers(span: str, source: str) -> list[str]:
    """Return the numbers of the range *span*, each with the first's width."""
    match = _RANGE.fullmatch(span)
    if match is None:
        raise ContractError(f"expected numbers and ranges in brackets, found {_short(span)}", where=source)
    first, last = int(match[1]), int(match[2] or match[1])
    if not 0 <= last - first < MOST_HOSTS:
        raise ContractError(f"expected a range that counts up to {MOST_HOSTS:,} hosts, found {span}", where=source)
    return [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]


def _short(text: str) -> str:
    return repr(beginning(text, 60))
