"""smp.init, smp.shutdown, smp.state, and torch's process groups of this rank."""

import atexit
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from toolkit.parallelism.parameters import Parameters
from toolkit.parallelism.placement import KINDS
from toolkit.rank.mesh.position import missing_variables, rank_position
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import NotInitialized, SMPError
from toolkit.rank.modelparallel.torch import parameter_rules

PROCESS_GROUP_TIMEOUT_S = 1800.0


class LibraryState:
    """`smp.state`: the attributes that scripts and transformers read."""

    def __init__(self) -> None:
        self.model: Any = None  # the DistributedModel
        self.optimizer: Any = None  # the DistributedOptimizer
        self.module_manager = ModuleManager()
        self.process_groups: dict[str, Any] = {}  # by kind (placement.KINDS)

    @property
    def cfg(self) -> Parameters:
        """The job's parameters."""
        return world.current().cfg

    @property
    def initialized(self) -> bool:
        """True after smp.init()."""
        return world.is_begun()

    @property
    def param_name_to_index_tp_group(self) -> list[dict[str, int]]:
        """For each tensor parallel rank: by name of each parameter of the optimizer, its number. They are alike."""
        number = {} if self.optimizer is None else self.optimizer.numbers_by_name()
        return [dict(number) for _ in world.current().group("tp")]

    @property
    def param_index_to_name_tp_group(self) -> list[dict[int, str]]:
        """For each tensor parallel rank: the names by number."""
        return [{number: name for name, number in numbers.items()} for numbers in self.param_name_to_index_tp_group]


class ModuleManager:
    """`translate_functions`: translate the state of a full checkpoint; transformers reads them, scripts add to them."""

    def __init__(self) -> None:
        self.translate_functions: list[Any] = []


state = LibraryState()


def init(config: Mapping[str, Any] | None = None) -> None:
    """Connect this rank with the others. All ranks call it, before anything else of the library.

    The parameters are those of the platform (SM_HP_MP_PARAMETERS), and, where it says nothing, those in *config*. A
    second call does nothing.

    Raises:
        ContractError: wrong parameters, or a number of ranks that does not fit them.
        SMPError: another *config* than the first call had.
    """
    if world.is_begun():
        if config is not None and world.read_parameters(config, os.environ) != world.current().cfg:
            raise SMPError("smp.init() was called before with other parameters: call it once")
        return
    position = rank_position(os.environ)
    # Wrong parameters are reported before the ranks wait for each other.
    cfg, placement = world.check(config, position, os.environ)
    import torch
    import torch.distributed as dist

    notes = (*world.notes(config, os.environ), *parameter_rules.check(cfg, placement, torch.cuda.is_available()))
    if position.rank == 0:
        sys.stderr.write("".join(f"[toolkit] smp: {note}\n" for note in notes))
    _begin_torch(position.size)

    def exchange(item: Any) -> list[Any]:
        values: list[Any] = [None] * position.size
        dist.all_gather_object(values, item)
        return values

    if torch.cuda.is_available():
        torch.cuda.set_device(position.local_rank)
    begun = world.begin(config, position, exchange, os.environ)
    state.process_groups = _process_groups(begun)
    atexit.register(shutdown)


def shutdown() -> None:
    """Say goodbye to the other ranks; at exit it is called by itself."""
    atexit.unregister(shutdown)
    state.process_groups = {}
    state.model = state.optimizer = None
    world.end()


def _begin_torch(size: int) -> None:
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    timeout = timedelta(seconds=PROCESS_GROUP_TIMEOUT_S)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)  # type: ignore[attr-defined]
        return
    os.environ.update(missing_variables(os.environ))
    dist.init_process_group(backend, timeout=timeout)


def _process_groups(begun: world.World) -> dict[str, Any]:
    """Return torch's process group of each kind. Groups of the same ranks are one, and all ranks make all of them."""
    import torch.distributed as dist

    groups: dict[tuple[int, ...], Any] = {tuple(range(begun.size)): dist.group.WORLD}
    for kind in KINDS:
        for rank in range(begun.size):
            ranks = begun.placement.group(kind, rank)
            if ranks not in groups:
                groups[ranks] = dist.new_group(list(ranks))
    return {kind: groups[begun.group(kind)] for kind in KINDS}


def get_world_process_group() -> Any:
    """torch's process group of all ranks."""
    return _process_group("world")


def get_pp_process_group() -> Any:
    """torch's process group of get_pp_group()."""
    return _process_group("pp")


def get_tp_process_group() -> Any:
    """torch's process group of get_tp_group()."""
    return _process_group("tp")


def get_rdp_process_group() -> Any:
    """torch's process group of get_rdp_group()."""
    return _process_group("rdp")


def get_dp_process_group() -> Any:
    """torch's process group of get_dp_group()."""
    return _process_group("dp")


def get_mp_process_group() -> Any:
    """torch's process group of get_mp_group()."""
    return _process_group("mp")


def _process_group(kind: str) -> Any:
    if not world.is_begun():
        raise NotInitialized(f"smp.get_{kind}_process_group()")
    return state.process_groups[kind]
