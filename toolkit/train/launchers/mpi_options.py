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


class MpirunRequest(Record, frozen=True, kw_only=True):
    """The ranks that mpirun starts, and how."""

    hosts: tuple[tuple[str, int], ...]
    """Each host's name and number of processes."""
    processes: int
    """The total."""
    interface: str | None = None
    """The network interface to the other hosts; None for one host."""
    agent: str = ""
    """The program that starts daemons on other hosts; "" for one host."""
    efa: bool = False
    """The hosts have EFA devices."""
    relays: bool = False
    """mpirun forwards the ranks' output, and must tag each line with its rank."""
    custom: tuple[str, ...] = ()
    """The user's options."""


def command(mpi: Mpi, request: MpirunRequest) -> tuple[str, ...]:
    """Return mpirun and its options; the caller appends the program.

    The user's options come last. One of ours that the user repeats is left out: Open MPI refuses an MCA parameter that
    is given twice, version 5 also --bind-to and --map-by, MPICH every option.
    """
    table = {"openmpi4": _open_mpi_4, "openmpi5": _open_mpi_5, "mpich": _mpich}
    repeated = {_key(entry) for entry in _entries(request.custom)} - COUNTED
    entries = (entry for entry in _entries(table[mpi.kind](request)) if _key(entry) not in repeated)
    return ("mpirun", *(token for entry in entries for token in entry), *request.custom)


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


def split_options(mpi: Mpi, options: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (custom *options* as this mpirun accepts them, variables for the ranks made from the other options).

    `--NCCL_DEBUG VALUE` becomes a variable; for MPICH, which has no -x, `-x NAME=VALUE` too.

    >>> split_options(Mpi(kind="openmpi4", version="4.1.8", path=""), "-verbose --NCCL_DEBUG INFO -x A=b")
    (('-verbose', '-x', 'A=b'), {'NCCL_DEBUG': 'INFO'})
    """
    variables: dict[str, str] = {}
    custom: list[str] = []
    tokens = options.split()
    while tokens:
        token = tokens.pop(0)
        if token == "--NCCL_DEBUG" and tokens:
            variables["NCCL_DEBUG"] = tokens.pop(0)
        elif token == "-x" and tokens and mpi.kind == "mpich":
            name, equals, value = tokens.pop(0).partition("=")
            if equals:  # Without a value mpirun would pass the leader's on; here each rank has its host's own value.
                variables[name] = value
        elif mpi.kind == "openmpi5" and re.fullmatch(r"-[a-z][a-z_-]+", token) and token not in ONE_DASH:
            custom.append("-" + token)
        else:
            custom.append(token)
    return tuple(custom), variables


def _open_mpi_4(request: MpirunRequest) -> tuple[str, ...]:
    return (
        "--host",
        _hosts(request),
        "-np",
        str(request.processes),
        "--allow-run-as-root",
        *(("--display-map", "--tag-output") if request.relays else ()),
        *_mca(btl_tcp_if_include=request.interface, oob_tcp_if_include=request.interface),
        # Open MPI 4 needs a remote agent even for one host: it does not start with neither an agent nor ssh.
        *_mca(plm_rsh_agent=request.agent if len(request.hosts) > 1 else "/bin/sh"),
        *(_mca(plm_rsh_no_tree_spawn="1") if len(request.hosts) > 1 else ()),
        *(("--leave-session-attached",) if len(request.hosts) > 1 else ()),
        # Else it removes the domain from names, and asks for a daemon on a host that is not in the job.
        *(_mca(orte_keep_fqdn_hostnames="1") if any(map(_has_domain, request.hosts)) else ()),
        "--bind-to",
        "none",
        "--map-by",
        "slot",
        *(_mca(pml="ob1", btl="^openib") if request.efa else ()),
        *_mca(btl_vader_single_copy_mechanism="none"),
    )


def _open_mpi_5(request: MpirunRequest) -> tuple[str, ...]:
    # PRRTE ignores loopback, and does not start if it may use nothing else.
    interface = None if request.interface == "lo" else request.interface
    remote = {"prte_if_include": interface, "plm_ssh_agent": request.agent, "plm_ssh_no_tree_spawn": "1"}
    return (
        "--host",
        _hosts(request),
        "-np",
        str(request.processes),
        "--allow-run-as-root",
        *(("--display", "map", "--output", "tag") if request.relays else ()),
        *_mca(btl_tcp_if_include=request.interface),
        *(_mca("--prtemca", **remote) if len(request.hosts) > 1 else ()),
        *(("--leave-session-attached",) if len(request.hosts) > 1 else ()),
        "--bind-to",
        "none",
        "--map-by",
        "slot",
        *(_mca(pml="ob1") if request.efa else ()),
        *_mca(smsc="^cma"),
    )


def _mpich(request: MpirunRequest) -> tuple[str, ...]:
    several = len(request.hosts) > 1
    return (
        "-genvnone",
        "-hosts",
        _hosts(request),
        "-np",
        str(request.processes),
        *(("-prepend-pattern", MPICH_PATTERN) if request.relays else ()),
        *(("-iface", request.interface) if several and request.interface else ()),
        *(("-launcher", "ssh", "-launcher-exec", request.agent) if several else ()),
    )


def _has_domain(host: tuple[str, int]) -> bool:
    return "." in host[0] and not host[0].replace(".", "").isdigit()


def _hosts(request: MpirunRequest) -> str:
    return ",".join(host if count == 1 else f"{host}:{count}" for host, count in request.hosts)


def _mca(word: str = "--mca", **values: str | None) -> tuple[str, ...]:
    return tuple(token for name, value in values.items() if value for token in (word, name, value))
