"""Pure: mpirun's own options for Open MPI 4, Open MPI 5 (PRRTE) and MPICH (Hydra).

The base is sagemaker-training 5.1.4's command line for Open MPI 4; docs/mpi.md lists each difference and its reason.
Options of Open MPI are written with two dashes: version 5 takes few of the long ones with one.
"""

import re

from toolkit.job.machine import Mpi
from toolkit.records import Record

# The only long option of Open MPI that version 5 still accepts with one dash; earlier versions accept all so.
ONE_DASH = ("-np",)
# Options whose value is a pair of tokens: an MCA parameter's name and value.
MCA = ("mca", "prtemca", "pmixmca")
# `train` counts ranks and hosts by these options of its own; the user's do not replace them.
COUNTED = {("host",), ("hosts",), ("np",)}
# Rank and host, in a form that train/supervise/tags.py recognizes. Hydra's -prepend-rank writes "[3] ", as a script
# may.
MPICH_PATTERN = "[1,mpirank:%r,%h]:"


class Asked(Record, frozen=True, kw_only=True):
    """What mpirun is to do. `hosts`: each host's name and number of processes.

    `interface`, `agent`: only for several hosts; `agent` is the program that starts daemons on other hosts. `relays`:
    mpirun forwards the ranks' output, and must tag each line with its rank.
    """

    hosts: tuple[tuple[str, int], ...]
    processes: int
    interface: str | None = None
    agent: str = ""
    efa: bool = False
    relays: bool = False
    custom: tuple[str, ...] = ()


def command(mpi: Mpi, asked: Asked) -> tuple[str, ...]:
    """Return mpirun and its options; the caller appends the program.

    The user's options come last. One of ours that the user repeats is left out: Open MPI refuses an MCA parameter that
    is given twice, version 5 also --bind-to and --map-by, MPICH every option.
    """
    table = {"openmpi4": _open_mpi_4, "openmpi5": _open_mpi_5, "mpich": _mpich}
    repeated = {_key(entry) for entry in _entries(asked.custom)} - COUNTED
    kept = (entry for entry in _entries(table[mpi.kind](asked)) if _key(entry) not in repeated)
    return ("mpirun", *(token for entry in kept for token in entry), *asked.custom)


def _entries(tokens: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return mpirun's options one by one, each with its values. An option begins with a dash."""
    entries: list[list[str]] = []
    left = 0  # Tokens that are values even if they begin with a dash: an MCA parameter's name and value.
    for token in tokens:
        if entries and (left or not token.startswith("-")):
            entries[-1].append(token)
            left = max(left - 1, 0)
        else:
            entries.append([token])
            left = 2 if token.lstrip("-") in MCA else 0
    return [tuple(entry) for entry in entries]


def _key(entry: tuple[str, ...]) -> tuple[str, ...]:
    """Return an option's identity: its name without dashes, and for an MCA option the parameter's name."""
    word = entry[0].lstrip("-")
    return (word, *entry[1:2]) if word in MCA else (word,)


def rank_variables(mpi: Mpi) -> tuple[str, str]:
    """Return the names of the variables that hold a rank's number and local number."""
    if mpi.kind == "mpich":
        return "PMI_RANK", "MPI_LOCALRANKID"
    return "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"


def split(mpi: Mpi, options: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (custom *options* as this mpirun accepts them, variables for the ranks made from the other options).

    `--NCCL_DEBUG VALUE` becomes a variable; for MPICH, which has no -x, `-x NAME=VALUE` too.

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
            if equals:  # Without a value mpirun would pass the leader's on; here each rank has its host's own value.
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
        # Open MPI 4 needs a remote agent even for one host: it does not start with neither an agent nor ssh.
        *_mca(plm_rsh_agent=asked.agent if len(asked.hosts) > 1 else "/bin/sh"),
        *(_mca(plm_rsh_no_tree_spawn="1") if len(asked.hosts) > 1 else ()),
        *(("--leave-session-attached",) if len(asked.hosts) > 1 else ()),
        # Else it removes the domain from names, and asks for a daemon on a host that is not in the job.
        *(_mca(orte_keep_fqdn_hostnames="1") if any(map(_has_domain, asked.hosts)) else ()),
        *("--bind-to", "none", "--map-by", "slot"),
        *(_mca(pml="ob1", btl="^openib") if asked.efa else ()),
        *_mca(btl_vader_single_copy_mechanism="none"),
    )


def _open_mpi_5(asked: Asked) -> tuple[str, ...]:
    # PRRTE ignores loopback, and does not start if it may use nothing else.
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
