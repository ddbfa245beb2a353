"""The World: this process's parameters, place and connections. One per process, from smp.init() to its end."""

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
from toolkit.rank.mesh.host import this_host
from toolkit.rank.mesh.mesh import Card, Door
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

    def __init__(self, cfg: Parameters, placement: Placement, here: RankPosition, messenger: Messenger) -> None:
        self.cfg = cfg
        self.placement = placement
        self.rank = here.rank
        self.size = here.size
        self.local_rank = here.local_rank
        self.local_size = here.local_size
        self.messenger = messenger
        self.is_profile = os.environ.get(PROFILE) == "1" and here.size == 1
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

    def next_number(self, what: str, kind: str) -> int:
        """Return 1, 2, ...: the number of this call of the collective *what* in the group of *kind*."""
        self._numbers[what, kind] += 1
        return self._numbers[what, kind]


class _Introduction(NamedTuple):
    """What each rank tells the others before they connect."""

    cfg: bytes
    host: str
    word: str
    card: Card


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


def begin(given: Mapping[str, Any] | None, here: RankPosition, exchange: Exchange, environ: Mapping[str, str]) -> World:
    """Connect this rank with all others and return its World. All ranks call this together.

    *given* are the script's parameters, which add to those of the variable SM_HP_MP_PARAMETERS (`read_parameters`).

    Raises:
        ContractError: wrong parameters, or a number of ranks that does not fit them.
        ConnectionError, TimeoutError: a rank cannot be reached.
    """
    global _world
    cfg, placement = check(given, here, environ)
    host = this_host(environ)
    with Door(here.rank, host.addresses(), host.word) as door:
        named = environ.get("SM_CURRENT_HOST") or socket.gethostname()
        said = [
            _Introduction(*each)
            for each in exchange(tuple(_Introduction(msgspec.json.encode(cfg), named, host.word, door.card)))
        ]
        _check_same(said)
        names = [
            f"rank {rank} (partition {placement.coordinates(rank)['P']}, host {its.host})"
            for rank, its in enumerate(said)
        ]
        peers = door.connect([Card(*each.card) for each in said], names, CONNECT_WITHIN_S, [each.word for each in said])
    _world = World(cfg, placement, here, Messenger(here.rank, peers, names))
    atexit.register(end)
    return _world


def check(
    given: Mapping[str, Any] | None, here: RankPosition, environ: Mapping[str, str]
) -> tuple[Parameters, Placement]:
    """Return the parameters and the placement of the ranks; the arguments are `begin`'s.

    The one process that profiles a model (PROFILE) places it on itself, whatever the partitions.

    Raises:
        ContractError: as `begin`.
    """
    cfg = read_parameters(given, environ)
    if environ.get(PROFILE) == "1" and here.size == 1:
        return cfg, place(1, 1, 1, cfg.placement_strategy, PROFILE)
    source = parameters.SCRIPT if given else parameters.VARIABLE
    return cfg, place(here.size, cfg.partitions, cfg.tensor_parallel_degree, cfg.placement_strategy, source)


def end() -> None:
    """Say goodbye to the other ranks. Not after an exception: they then see this rank as lost, with its error."""
    global _world
    ended, _world = _world, None
    atexit.unregister(end)
    if ended is not None and not hasattr(sys, "last_value"):
        ended.messenger.close()


def read_parameters(given: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Parameters:
    """Return the parameters of the platform, which it has put into the environment, with those of *given*.

    The platform's hold; what they do not say is taken from *given*, the script's.

    Raises:
        ContractError: there are none, or wrong ones.
    """
    return parameters.merged(_of_platform(environ), given or {})[0]


def notes(given: Mapping[str, Any] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line if parameters in *given*, the script's, differ from the platform's, which hold."""
    differences = parameters.merged(_of_platform(environ), given or {})[1]
    if not differences:
        return ()
    named = ", ".join(f"{each.name} {each.job!r} (the script has {each.script!r})" for each in differences)
    return (f"the job's mp_parameters hold before those of {parameters.SCRIPT}: {named}",)


def _of_platform(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(parameters.VARIABLE, "")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ContractError(
            f"expected a JSON object, found {text!r}",
            where=parameters.VARIABLE,
            hint='It comes from the hyperparameter mp_parameters, for example {"partitions": 2}.',
        )
    return found


def _check_same(said: "list[_Introduction]") -> None:
    for other, its in enumerate(said):
        if its.cfg != said[0].cfg:
            ours, theirs = json.loads(said[0].cfg), json.loads(its.cfg)
            name = next(name for name in ours if ours[name] != theirs[name])
            raise ContractError(
                f"expected the same parameters on all ranks, found {name} {ours[name]!r} on rank 0 and "
                f"{theirs[name]!r} on rank {other}",
                where=parameters.VARIABLE,
                hint="Give all hosts the same hyperparameters.",
            )
