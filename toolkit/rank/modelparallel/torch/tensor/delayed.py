"""Delayed initialisation: modules are made without values, and each rank makes those that it keeps.

A module's values are what the `_init_weights` of the Hugging Face model around it gives, else its own reset_parameters,
from a seed of its path: they do not depend on partitions or tensor parallel degree. Only one module's whole parameters
are in memory at a time, so what such a model gives to a module from one above it (GPT-2's smaller c_proj) is not given.
"""

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Collection, Iterator

import torch
from torch import nn

from toolkit.rank.frameworks.torch.modules import get_own_children, get_own_parameters
from toolkit.rank.frameworks.transformers import find_weight_initializer
from toolkit.rank.modelparallel import objects
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch.tensor.sharding import MARK, slice_local, whole_shape


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Make modules within the block without values of their parameters, if *enabled*; DistributedModel makes those."""
    thread_id, registered = threading.get_ident(), nn.Module.register_parameter

    @functools.wraps(registered)
    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta and threading.get_ident() == thread_id:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        registered(module, name, param)

    if enabled:
        nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = registered  # type: ignore[method-assign]


def is_delayed(module: nn.Module) -> bool:
    """Return whether parameters of *module* have no values yet."""
    return any(parameter.is_meta for parameter in module.parameters())


def initialise(module: nn.Module, is_mine: Callable[[str], bool]) -> None:
    """Give values to the parameters of the modules in *module* whose path *is_mine* accepts. All ranks call this.

    Raises:
        SMPError: nothing gives such a module values.
    """
    seed = objects.allgather(torch.initial_seed())[0]
    for path, submodule in module.named_modules():
        new = {name: parameter for name, parameter in get_own_parameters(submodule).items() if parameter.is_meta}
        if not new or not is_mine(path):
            continue
        for parameter in new.values():
            _swap(parameter, torch.full(whole_shape(parameter), torch.nan, dtype=parameter.dtype))
        old_values = {name: parameter.detach().clone() for name, parameter in get_own_parameters(submodule).items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed ^ zlib.crc32(path.encode()))
            _reset(_owner(module, path), path, submodule, new.values())
        with torch.no_grad():
            for name, parameter in get_own_parameters(submodule).items():
                if name in old_values and name not in new:  # Shared with a module that gave it values.
                    parameter.copy_(old_values[name])
        for parameter in new.values():
            if hasattr(parameter, MARK):
                parameter.data = slice_local(parameter.data, getattr(parameter, MARK).axis).clone()


def _owner(model: nn.Module, path: str) -> nn.Module | None:
    """Return the outermost Hugging Face model that holds the module at *path* of *model*."""
    around = model
    for name in (*path.split("."), ""):
        if find_weight_initializer(around) is not None:
            return around
        if not name:
            break
        around = get_own_children(around)[name]
    return None


def _reset(owner: nn.Module | None, path: str, module: nn.Module, new: Collection[nn.Parameter]) -> None:
    """Give values to *new*, parameters of *module* that are NaN."""
    reset: Callable[[], object] | None = getattr(module, "reset_parameters", None)
    initialize = find_weight_initializer(owner)
    if initialize is not None:
        initialize(module)
    if any(
        bool(parameter.isnan().any()) for parameter in new
    ):  # A class that the model does not know, or knows from above.
        if reset is None:
            raise SMPError(
                f"expected a method reset_parameters, which gives values to the parameters of module {path} "
                f"({type(module).__name__}), found none: write one, or make the module outside of "
                "smp.delay_param_initialization"
            )
        reset()


def _swap(parameter: nn.Parameter, values: torch.Tensor) -> None:
    replacement = nn.Parameter(values, requires_grad=parameter.requires_grad)
    replacement.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, replacement)  # type: ignore[no-untyped-call]
