"""Pure: a command line of torchrun as a launch: its hosts, ranks, rendezvous, script and output, each value checked."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from toolkit.errors import ContractError, did_you_mean
from toolkit.job.job import Script
from toolkit.job.machine import Machine
from toolkit.job.torchrun_line import RankOutput
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.settings import MOST
from toolkit.train.platforms.place import MOST_HOSTS
from toolkit.train.platforms.torchrun_options import OPTIONS, USE_ENV, WHERE, parse_line

RUN, LAUNCH = "torch.distributed.run", "torch.distributed.launch"
# torch 2.13: torch/distributed/run.py for static, torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py.
STATIC_PORT, C10D_PORT = 29_500, 29_400
DEFAULT_ID = "none"
# The options that torch's own launcher gets unchanged, where they differ from their defaults.
PASSED_ON = ("event_log_handler", "role", "numa_binding", "virtual_local_rank", "local_addr")
# Options of Python that take the next word as well.
WITH_VALUE = ("-W", "-X")
_STREAMS = lazy(r"[0-3]")
_STREAMS_BY_RANK = lazy(r"[0-9]{1,7}:[0-3](?:,[0-9]{1,7}:[0-3])*")
_RANKS = lazy(r"[0-9]{1,7}(?:,[0-9]{1,7})*")
_HOST = lazy(r"[\w.:-]+")


class CommandWords(Record, frozen=True, kw_only=True):
    """A line, without the program that begins it."""

    words: tuple[str, ...]
    module: Literal["torch.distributed.run", "torch.distributed.launch"] = "torch.distributed.run"
    python: str = ""
    """The interpreter that begins the line; "": none does."""


class Meeting(Record, frozen=True, kw_only=True):
    """The place at which hosts that do not know their numbers meet (c10d)."""

    host: str
    port: int
    is_host: bool | None = None
    """This host is the one at the endpoint; None: found by its address."""


class TorchrunLaunch(Record, frozen=True, kw_only=True):
    """A command line of torchrun."""

    hosts: int
    """The number of hosts."""
    node_rank: int | None
    """This host's number; None: the hosts number themselves where they meet."""
    wish: int
    """The number that the line gives this host, which c10d need not heed."""
    meeting: Meeting | None
    address: str
    """The address at which the ranks meet: that of host 0."""
    port: int
    """The port there; 0: any that is free."""
    run_id: str
    """The rendezvous' id, DEFAULT_ID without one."""
    join_s: float | None
    """The seconds for which hosts wait for each other; None: as other jobs."""
    processes: str
    """The number of ranks on this host, or the kind of device by which they are counted."""
    max_restarts: int
    shutdown_s: int | None
    """From SIGTERM to SIGKILL; None: as other jobs."""
    script: Script
    arguments: tuple[str, ...]
    module: Literal["torch.distributed.run", "torch.distributed.launch"]
    """The module of torch that starts the ranks."""
    options: tuple[str, ...]
    """Its options that do not concern hosts, ranks or output."""
    log_dir: Path | None
    redirects: str
    tee: str
    shown_ranks: tuple[int, ...]
    """The local ranks that the console shows; (): all."""
    stdout_filters: tuple[str, ...]
    stderr_filters: tuple[str, ...]
    variables: tuple[str, ...]
    """The names of the variables that set options: torch's launcher must not read them again."""

    @property
    def name(self) -> str:
        """The job's name: the rendezvous' id, else the script's."""
        return self.run_id if self.run_id != DEFAULT_ID else Path(self.script.entry).stem

    def count_processes(self, machine: Machine) -> int:
        """Return the number of ranks on this host.

        Raises:
            ContractError: this host has no such devices.
        """
        if self.processes.isdigit():
            return int(self.processes)
        if self.processes == "cpu" or (self.processes == "auto" and not machine.accelerators):
            return machine.cpus_total
        if self.processes == "gpu" and not machine.gpus and not machine.gpu_trouble:
            raise _wrong("--nproc-per-node gpu: expected GPUs, found none", "Give a number, or auto.")
        return machine.accelerators or 1  # A GPU that cannot be used ends the job later, with its name.

    def rank_output(self, processes: int, node_rank: int, folder: Path) -> RankOutput:
        """Return where the output of this host's ranks goes, with *processes* ranks; *folder*: the run's."""
        local_ranks = range(processes)
        redirects, tees = _by_rank(self.redirects, processes), _by_rank(self.tee, processes)
        shown = self.shown_ranks or local_ranks
        return RankOutput(
            folder=folder,
            first_rank=node_rank * processes if "--virtual_local_rank" in self.options else None,
            in_files=tuple(redirects[rank] | tees[rank] for rank in local_ranks),
            on_console=tuple(3 & ~(redirects[rank] & ~tees[rank]) if rank in shown else 0 for rank in local_ranks),
            stdout_filters=self.stdout_filters,
            stderr_filters=self.stderr_filters,
        )


def without_program(words: Sequence[str]) -> CommandWords:
    """Return the options and the script of *words*, which may begin with torchrun, or with python -m and its module.

    Raises:
        ContractError: they begin with another program of Python's.
    """
    if not words:
        raise _wrong("expected options and a script, found nothing", "For help: toolkit torchrun --help")
    program = words[0].rpartition("/")[2]
    if program == "torchrun":
        return CommandWords(words=tuple(words[1:]))
    if not re.fullmatch(r"python[0-9.]*", program):
        return CommandWords(words=tuple(words))
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-m":
        place += 1 + (words[place] in WITH_VALUE)
    if words[place : place + 1] != ["-m"] or words[place + 1 : place + 2] not in ([RUN], [LAUNCH]):
        raise _wrong(
            f"expected {words[0]} -m {RUN} or -m {LAUNCH}, found {' '.join(words[: place + 2])[:80]!r}",
            "Give the line that starts the ranks, or the options of torchrun and the script.",
        )
    module: Literal["torch.distributed.run", "torch.distributed.launch"] = (
        "torch.distributed.launch" if words[place + 1] == LAUNCH else "torch.distributed.run"
    )
    return CommandWords(words=tuple(words[place + 2 :]), module=module, python=words[0])


def read_launch(line: CommandWords, environ: Mapping[str, str], folder: Path) -> TorchrunLaunch:
    """Return the launch of *line* in the current *folder*.

    Raises:
        ContractError: an option or PET_* variable has a wrong value, or one that cannot be honoured.
    """
    given = parse_line(line.words, environ, launch=line.module == LAUNCH)
    hosts = _hosts(given.nnodes)
    conf = _conf(given.rdzv_conf)
    script = _script(given, folder, launch=line.module == LAUNCH)
    _check(given)
    backend, endpoint, run_id = given.rdzv_backend, given.rdzv_endpoint, given.rdzv_id
    if given.standalone:
        if hosts != 1:
            raise _wrong(f"--standalone: expected one host, found --nnodes {hosts}", "Leave one of them out.")
        backend, endpoint, run_id = "c10d", "", DEFAULT_ID
    if backend not in ("static", "c10d"):
        raise _wrong(
            f"--rdzv-backend: expected c10d or static, found {backend!r}",
            did_you_mean(backend, ("c10d", "static")) or "toolkit torchrun has its own link between the hosts.",
        )
    is_c10d = backend == "c10d"
    if is_c10d and hosts > 1 and not endpoint:
        raise _wrong(
            "--rdzv-endpoint: expected HOST:PORT at which the hosts meet, found nothing",
            "Give the same one on every host.",
        )
    if is_c10d or endpoint:
        address, port = _endpoint(endpoint, C10D_PORT if is_c10d else -1)
        port = 0 if is_c10d and hosts == 1 else port
    else:
        address = given.master_addr.strip().removeprefix("[").removesuffix("]")
        port = STATIC_PORT if given.master_port is None and hosts > 1 else given.master_port or 0
    if hosts > 1 and port == 0:
        raise _wrong("expected a port at which the hosts meet, found 0", "Give the same one on every host.")
    if not is_c10d and not 0 <= given.node_rank < hosts:
        raise _wrong(
            f"--node-rank: expected 0 to {hosts - 1} for {hosts} host{'s' * (hosts > 1)}, found {given.node_rank}",
            "Give each host another number.",
        )
    return TorchrunLaunch(
        hosts=hosts,
        node_rank=0 if hosts == 1 else None if is_c10d else given.node_rank,
        wish=max(given.node_rank, 0),
        meeting=Meeting(host=address, port=port, is_host=conf.is_host) if is_c10d and hosts > 1 else None,
        address=address,
        port=port,
        run_id=run_id.strip() or DEFAULT_ID,
        join_s=conf.join_s,
        processes=given.nproc_per_node,
        max_restarts=given.max_restarts,
        shutdown_s=given.shutdown_timeout,
        script=script,
        arguments=tuple(given.training_script_args),
        module=line.module,
        options=_passed_on(given, run_id, launch=line.module == LAUNCH),
        log_dir=folder / given.log_dir if given.log_dir else None,
        redirects=given.redirects,
        tee=given.tee,
        shown_ranks=tuple(map(int, given.local_ranks_filter.split(","))) if given.local_ranks_filter else (),
        stdout_filters=tuple(filter(None, given.duplicate_stdout_filters)),
        stderr_filters=tuple(filter(None, given.duplicate_stderr_filters)),
        variables=tuple(
            f"PET_{option.dest.upper()}"
            for option in OPTIONS
            if option.by_variable and f"PET_{option.dest.upper()}" in environ
        ),
    )


def _check(given: argparse.Namespace) -> None:
    """Raise ContractError for a wrong value of an option that stands for itself."""
    processes = given.nproc_per_node
    is_number = processes.isascii() and processes.isdigit() and 1 <= int(processes[:8]) <= MOST
    if not is_number and processes not in ("auto", "cpu", "gpu", "xpu"):
        raise _wrong(
            f"--nproc-per-node: expected a number, auto, cpu, gpu or xpu, found {processes[:40]!r}",
            did_you_mean(processes, ("auto", "cpu", "gpu", "xpu")),
        )
    if not 0 <= given.max_restarts <= MOST:
        raise _wrong(f"--max-restarts: expected 0 to {MOST:,}, found {given.max_restarts}")
    if given.shutdown_timeout is not None and not 0 <= given.shutdown_timeout <= MOST:
        raise _wrong(f"--shutdown-timeout: expected seconds, 0 to {MOST:,}, found {given.shutdown_timeout}")
    for name, text in (("--redirects", given.redirects), ("--tee", given.tee)):
        if not (_STREAMS.fullmatch(text) or _STREAMS_BY_RANK.fullmatch(text)):
            raise _wrong(f"{name}: expected 0, 1, 2, 3 or LOCAL_RANK:STREAMS,..., found {text[:40]!r}", "1 is stdout.")
    if given.local_ranks_filter and not _RANKS.fullmatch(given.local_ranks_filter):
        raise _wrong(f"--local-ranks-filter: expected numbers as 0,1, found {given.local_ranks_filter[:40]!r}")
    if given.logs_specs is not None:
        raise _wrong(
            f"--logs-specs {given.logs_specs[:40]}: expected no class of one's own: train writes the ranks' logs",
            "Use --log-dir, --redirects and --tee.",
        )


def _hosts(text: str) -> int:
    """Return the number of hosts that --nnodes gives."""
    low, colon, high = text.partition(":")
    numbers = [part for part in (low, high if colon else low) if part.isascii() and part.isdigit() and len(part) < 8]
    if len(numbers) < 2 or not 1 <= int(numbers[0]) <= int(numbers[1]) <= MOST_HOSTS:
        raise _wrong(f"--nnodes: expected a number of hosts, 1 to {MOST_HOSTS:,}, found {text[:40]!r}")
    if int(numbers[0]) != int(numbers[1]):
        raise _wrong(
            f"--nnodes {text}: expected one number: a job has the same hosts from its start to its end",
            f"Give --nnodes {int(numbers[1])}, or as many as there are.",
        )
    return int(numbers[0])


class _Conf(Record, frozen=True, kw_only=True):
    """The values of --rdzv-conf."""

    join_s: float | None = None
    is_host: bool | None = None


def _conf(text: str) -> _Conf:
    """Return what --rdzv-conf says; torch ignores other keys, too."""
    values: dict[str, str] = {}
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise _wrong(f"--rdzv-conf: expected KEY=VALUE,KEY=VALUE, found {pair[:40]!r}")
        values[key.strip()] = value.strip()
    name = next((name for name in ("join_timeout", "timeout") if name in values), "")
    join_text = values.get(name, "")
    if join_text and not (join_text.isascii() and join_text.isdigit() and 1 <= int(join_text[:8]) <= MOST):
        raise _wrong(f"--rdzv-conf: {name}: expected seconds, 1 to {MOST:,}, found {join_text[:40]!r}")
    is_host = values.get("is_host", "").lower()
    if is_host not in ("", "0", "1", "true", "false", "t", "f", "yes", "no", "y", "n"):
        raise _wrong(f"--rdzv-conf: is_host: expected 1 or 0, found {is_host[:40]!r}")
    return _Conf(
        join_s=float(join_text) if join_text else None,
        is_host=is_host[0] in "1ty" if is_host else None,
    )


def _endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Return (host, port) of --rdzv-endpoint."""
    text = text.strip()
    if not text:
        return "localhost", default_port
    host, colon, port_text = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port_text = text, str(default_port)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if "%" in host and ":" in host:
        raise _wrong(
            f"--rdzv-endpoint: expected an address that all hosts share, found {text[:80]!r}, whose scope "
            f"({host.partition('%')[2][:40]!r}) is an interface of this host",
            "Give the name or a global address of the host at which they meet.",
        )
    is_port = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) < 65536
    if not _HOST.fullmatch(host) or not is_port:
        raise _wrong(f"--rdzv-endpoint: expected HOST:PORT, found {text[:80]!r}")
    return host, int(port_text)


def _script(given: argparse.Namespace, folder: Path, *, launch: bool) -> Script:
    """Return the script, which runs in the current *folder*."""
    if given.no_python and given.module and not given.run_path:
        raise _wrong("--no-python and --module: expected one of them", "Leave one out.")
    if launch and given.no_python and not given.use_env:
        raise _wrong("--no-python: expected --use-env with it: a program has no --local-rank", "Add --use-env.")
    kind: Literal["program", "module", "command"] = "program"
    if not given.run_path:
        kind = "module" if given.module else "command" if given.no_python else "program"
    return Script(entry=given.training_script, kind=kind, folder=folder, argument_style="none")


def _passed_on(given: argparse.Namespace, run_id: str, *, launch: bool) -> tuple[str, ...]:
    """Return the options that torch's launcher gets."""
    words = ["--rdzv_id", run_id] if run_id and run_id != DEFAULT_ID else []
    by_dest = {option.dest: option for option in (*OPTIONS, *((USE_ENV,) if launch else ()))}
    for dest in (*PASSED_ON, *(("use_env",) if launch else ())):
        value = getattr(given, dest)
        if value != by_dest[dest].default:
            words += [f"--{dest}"] if by_dest[dest].kind == "flag" else [f"--{dest}", str(value)]
    return tuple(words)


def _by_rank(text: str, processes: int) -> list[int]:
    """Return the bits of streams for each of *processes* local ranks."""
    if ":" not in text:
        return [int(text)] * processes
    pairs = (pair.partition(":") for pair in text.split(","))
    by_rank = {int(rank): int(bits) for rank, _, bits in pairs}
    return [by_rank.get(rank, 0) for rank in range(processes)]


def _wrong(message: str, hint: str = "") -> ContractError:
    return ContractError(message, where=WHERE, hint=hint)
