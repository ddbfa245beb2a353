"""Pure: mpirun's own options for Open MPI 4, Open MPI 5 (PRRTE) and MPICH (Hydra).

The base is sagemaker-training 5.1.4's command line for Open MPI 4; docs/mpi.md lists each difference and its reason.
Options of Open MPI are written with two dashes: version 5 takes few of the long ones with one.
"""

import re

from toolkit.job.machine import Mpi
from toolkit.records import Record

# Of Open MPI's long options with one dash, as they were written for years, the one that version 5 still wants so.
ONE_DASH = ("-np",)
# Options whose value is a pair of tokens: an MCA parameter's name and value.
MCA = ("mca", "prtemca", "pmixmca")
# What `train` itself counts ranks and hosts by: an option of the user's does not change it.
COUNTED = {("host",), ("hosts",), ("np",)}
# Rank and host; the relay knows it again (supervise/tags.py). Hydra's own -prepend-rank, "[3] ", could be any text.
MPICH_PATTERN = "[1,mpirank:%r,%h]:"


class Asked(Record, frozen=True, kw_only=True):
    """What mpirun is to do. `hosts`: name and processes of each; `interface` and `agent` only where there are several.

    `agent`: the program that starts daemons on other hosts. `relays`: mpirun's own output is the ranks', and must say
    whose it is.
    """

    hosts: tuple[tuple[str, int], ...]
    processes: int
    interface: str | None = None
    agent: str = ""
    efa: bool = False
    relays: bool = False
    custom: tuple[str, ...] = ()


def command(mpi: Mpi, asked: Asked) -> tuple[str, ...]:
    """Return mpirun and its options; what it is to start comes behind.

    The user's own come last, and one of ours that they repeat is left out: Open MPI refuses an MCA parameter that is
    given twice, version 5 --bind-to and --map-by too, MPICH every option.
    """
    table = {"openmpi4": _open_mpi_4, "openmpi5": _open_mpi_5, "mpich": _mpich}
    repeated = {_key(entry) for entry in _entries(asked.custom)} - COUNTED
    kept = (entry for entry in _entries(table[mpi.kind](asked)) if _key(entry) not in repeated)
    return ("mpirun", *(token for entry in kept for token in entry), *asked.custom)


def _entries(tokens: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return mpirun's options one by one, each with its values: an option is what begins with a dash."""
    entries: list[list[str]] = []
    left = 0  # Values that follow whatever they look like: an MCA parameter's name and value.
    for token in tokens:
        if entries and (left or not token.startswith("-")):
            entries[-1].append(token)
            left = max(left - 1, 0)
        else:
            entries.append([token])
            left = 2 if token.lstrip("-") in MCA else 0
    return [tuple(entry) for entry in entries]


def _key(entry: tuple[str, ...]) -> tuple[str, ...]:
    """Return what tells an option from others: its name less dashes, and an MCA parameter's name."""
    word = entry[0].lstrip("-")
    return (word, *entry[1:2]) if word in MCA else (word,)


def rank_variables(mpi: Mpi) -> tuple[str, str]:
    """Return the variables that tell a rank its rank and its local rank."""
    if mpi.kind == "mpich":
        return "PMI_RANK", "MPI_LOCALRANKID"
    return "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"


def split(mpi: Mpi, options: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (custom *options* as this mpirun takes them, the variables that ranks get instead).

    `--NCCL_DEBUG VALUE` is such a variable; under MPICH, which has no -x, so is `-x NAME=VALUE`.

    >>> split(Mpi(kind="openmpi4", version="4.1.8", path=""), "-verbose --NCCL_DEBUG INFO -x A=b")
    (('-verbose', '-x', 'A=b'), {'NCCL_DEBUG': 'INFO'})
    """
    given: dict[str, str] = {}
    kept: list[str] = []
    tokens = options.split()
    while tokens:
        token = tokens.pop(0)
        if token == "--NCCL_DEBUG" and tokens:
            given["NCCL_DEBUG"] = tokens.pop(0)
        elif token == "-x" and tokens and mpi.kind == "mpich":
            name, equals, value = tokens.pop(0).partition("=")
            if equals:  # Without a value mpirun would pass on the leader's; here each host has its own.
                given[name] = value
        elif mpi.kind == "openmpi5" and re.fullmatch(r"-[a-z][a-z_-]+", token) and token not in ONE_DASH:
            kept.append("-" + token)
        else:
            kept.append(token)
    return tuple(kept), given


def _open_mpi_4(asked: Asked) -> tuple[str, ...]:
    return (
        *("--host", _hosts(asked), "-np", str(asked.processes), "--allow-run-as-root"),
        *(("--display-map", "--tag-output") if asked.relays else ()),
        *_mca(btl_tcp_if_include=asked.interface, oob_tcp_if_include=asked.interface),
        # Open MPI 4 wants an agent on one host, too, and does not start where there is neither it nor ssh.
        *_mca(plm_rsh_agent=asked.agent if len(asked.hosts) > 1 else "/bin/sh"),
        *(_mca(plm_rsh_no_tree_spawn="1") if len(asked.hosts) > 1 else ()),
        *(("--leave-session-attached",) if len(asked.hosts) > 1 else ()),
        # It would cut names with a domain short, and ask for a daemon on a host that is none of the job's.
        *(_mca(orte_keep_fqdn_hostnames="1") if any(map(_has_domain, asked.hosts)) else ()),
        *("--bind-to", "none", "--map-by", "slot"),
        *(_mca(pml="ob1", btl="^openib") if asked.efa else ()),
        *_mca(btl_vader_single_copy_mechanism="none"),
    )


def _open_mpi_5(asked: Asked) -> tuple[str, ...]:
    # PRRTE counts loopback as no interface at all, and does not start where it is told to take nothing else.
    interface = None if asked.interface == "lo" else asked.interface
    remote = {"prte_if_include": interface, "plm_ssh_agent": asked.agent, "plm_ssh_no_tree_spawn": "1"}
    return (
        *("--host", _hosts(asked), "-np", str(asked.processes), "--allow-run-as-root"),
        *(("--display", "map", "--output", "tag") if asked.relays else ()),
        *_mca(btl_tcp_if_include=asked.interface),
        *(_mca("--prtemca", **remote) if len(asked.hosts) > 1 else ()),
        *(("--leave-session-attached",) if len(asked.hosts) > 1 else ()),
        *("--bind-to", "none", "--map-by", "slot"),
        *(_mca(pml="ob1") if asked.efa else ()),
        *_mca(smsc="^cma"),
    )


def _mpich(asked: Asked) -> tuple[str, ...]:
    several = len(asked.hosts) > 1
    return (
        *("-genvnone", "-hosts", _hosts(asked), "-np", str(asked.processes)),
        *(("-prepend-pattern", MPICH_PATTERN) if asked.relays else ()),
        *(("-iface", asked.interface) if several and asked.interface else ()),
        *(("-launcher", "ssh", "-launcher-exec", asked.agent) if several else ()),
    )


def _has_domain(host: tuple[str, int]) -> bool:
    return "." in host[0] and not host[0].replace(".", "").isdigit()


def _hosts(asked: Asked) -> str:
    return ",".join(host if count == 1 else f"{host}:{count}" for host, count in asked.hosts)


def _mca(word: str = "--mca", **values: str | None) -> tuple[str, ...]:
    return tuple(token for name, value in values.items() if value for token in (word, name, value))
