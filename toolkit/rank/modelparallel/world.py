"""The World: this process's parameters, placement and connections. One per process, from smp.init() to its end."""

import atexit
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolkit.errors import ContractError
from toolkit.parallelism import parameters
from toolkit.parallelism.parameters import Parameters
from toolkit.parallelism.placement import Placement, place
from toolkit.rank.mesh.host import identify_host
from toolkit.rank.mesh.mesh import ContactInfo, MeshListener
from toolkit.rank.mesh.position import RankPosition
from toolkit.rank.modelparallel.errors import NotInitialized
from toolkit.rank.modelparallel.messenger import Messenger

# Gathers a picklable object from all ranks, in order of rank; all ranks call it together.
Exchange = Callable[[Any], list[Any]]
CONNECT_WITHIN_S = 60.0
PROFILE = "TOOLKIT_SMP_PROFILE"  # "1": measure the model, write the partition decision and end (toolkit partition).
OUTPUT_DATA = "/opt/ml/output/data"  # The platform's, if SM_OUTPUT_DATA_DIR names no other.


class World:
    """`folder` is the job's output/data folder, `is_profile` True in the one process that only decides (PROFILE).

    See `begin` for the arguments.
    """

    def __init__(self, cfg: Parameters, placement: Placement, position: RankPosition, messenger: Messenger) -> None:
        self.cfg = cfg
        self.placement = placement
        self.rank = position.rank
        self.size = position.size
        self.local_rank = position.local_rank
        self.local_size = position.local_size
        self.messenger = messenger
        self.is_profile = os.environ.get(PROFILE) == "1" and position.size == 1
        self.folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR") or OUTPUT_DATA)
        self._groups: dict[str, tuple[int, ...]] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()

    def group(self, kind: str) -> tuple[int, ...]:
        """Return the ranks of this rank's group of *kind* (placement.KINDS), ascending."""
        if kind not in self._groups:
            self._groups[kind] = self.placement.group(kind, self.rank)
        return self._groups[kind]

    def rank_in(self, kind: str) -> int:
        """Return this rank's number in its group of *kind*."""
        return self.group(kind).index(self.rank)

    def next_number(self, collective: str, kind: str) -> int:
        """Return 1, 2, ...: the number of this call of *collective* in the group of *kind*."""
        self._numbers[collective, kind] += 1
        return self._numbers[collective, kind]


class _Introduction(NamedTuple):
    """Each rank sends it to the others before they connect."""

    cfg: bytes
    host: str
    host_id: str
    contact: ContactInfo


_world: World | None = None


def current() -> World:
    """Return this process's World.

    Raises:
        NotInitialized: `begin` was not called.
    """
    if _world is None:
        raise NotInitialized
    return _world


def say(note: str) -> None:
    """Write *note* to the log, on rank 0 alone."""
    if current().rank == 0:
        sys.stderr.write(f"[toolkit] smp: {note}\n")


def is_begun() -> bool:
    """True from `begin` to `end`."""
    return _world is not None


def begin(
    script_parameters: Mapping[str, Any] | None,
    position: RankPosition,
    exchange: Exchange,
    environ: Mapping[str, str],
) -> World:
    """Connect this rank with all others and return its World. All ranks call this together.

    *script_parameters* add to those of the variable SM_HP_MP_PARAMETERS (`read_parameters`).

    Raises:
        ContractError: wrong parameters, or a number of ranks that does not fit them.
        ConnectionError, TimeoutError: a rank cannot be reached.
    """
    global _world
    cfg, placement = check(script_parameters, position, environ)
    host = identify_host(environ)
    with MeshListener(position.rank, host.addresses(), host.host_id) as listener:
        host_name = environ.get("SM_CURRENT_HOST") or socket.gethostname()
        introductions = [
            _Introduction(*introduction)
            for introduction in exchange(
                tuple(_Introduction(msgspec.json.encode(cfg), host_name, host.host_id, listener.contact))
            )
        ]
        _check_same_parameters(introductions)
        names = [
            f"rank {rank} (partition {placement.coordinates(rank)['P']}, host {introduction.host})"
            for rank, introduction in enumerate(introductions)
        ]
        peers = listener.connect(
            [ContactInfo(*introduction.contact) for introduction in introductions],
            names,
            CONNECT_WITHIN_S,
            [introduction.host_id for introduction in introductions],
        )
    _world = World(cfg, placement, position, Messenger(position.rank, peers, names))
    atexit.register(end)
    return _world


def check(
    script_parameters: Mapping[str, Any] | None, position: RankPosition, environ: Mapping[str, str]
) -> tuple[Parameters, Placement]:
    """Return the parameters and the placement of the ranks; the arguments are `begin`'s.

    The one process that profiles a model (PROFILE) places it on itself, whatever the partitions.

    Raises:
        ContractError: as `begin`.
    """
    cfg = read_parameters(script_parameters, environ)
    if environ.get(PROFILE) == "1" and position.size == 1:
        return cfg, place(1, 1, 1, cfg.placement_strategy, PROFILE)
    source = parameters.SCRIPT if script_parameters else parameters.VARIABLE
    return cfg, place(position.size, cfg.partitions, cfg.tensor_parallel_degree, cfg.placement_strategy, source)


def end() -> None:
    """Say goodbye to the other ranks, but not after an exception: they then see this rank as lost, with its error."""
    global _world
    ending_world, _world = _world, None
    atexit.unregister(end)
    if ending_world is not None and not hasattr(sys, "last_value"):
        ending_world.messenger.close()


def read_parameters(script_parameters: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Parameters:
    """Return the job's parameters, which the platform put into the environment, completed by *script_parameters*.

    Where both name a parameter, the job's value holds.

    Raises:
        ContractError: there are none, or wrong ones.
    """
    return parameters.merge(_read_job_parameters(environ), script_parameters or {})[0]


def notes(script_parameters: Mapping[str, Any] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line if *script_parameters* differ from the job's, which hold."""
    differences = parameters.merge(_read_job_parameters(environ), script_parameters or {})[1]
    if not differences:
        return ()
    listed = ", ".join(
        f"{difference.name} {difference.job!r} (the script has {difference.script!r})" for difference in differences
    )
    return (f"the job's mp_parameters hold before those of {parameters.SCRIPT}: {listed}",)


def _read_job_parameters(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(parameters.VARIABLE, "")
    try:
        job_parameters = json.loads(text) if text else {}
    except ValueError:
        job_parameters = None
    if not isinstance(job_parameters, dict):
        raise ContractError(
            f"expected a JSON object, found {text!r}",
            where=parameters.VARIABLE,
            hint='It comes from the hyperparameter mp_parameters, for example {"partitions": 2}.',
        )
    return job_parameters


def _check_same_parameters(introductions: "list[_Introduction]") -> None:
    for rank, introduction in enumerate(introductions):
        if introduction.cfg != introductions[0].cfg:
            rank_0_parameters, rank_parameters = json.loads(introductions[0].cfg), json.loads(introduction.cfg)
            name = next(name for name in rank_0_parameters if rank_0_parameters[name] != rank_parameters[name])
            raise ContractError(
                f"expected the same parameters on all ranks, found {name} {rank_0_parameters[name]!r} on rank 0 and "
                f"{rank_parameters[name]!r} on rank {rank}",
                where=parameters.VARIABLE,
                hint="Give all hosts the same hyperparameters.",
            )
