"""Replaces the modules that the script has marked as tensor parallel; DistributedModel calls it.

A Linear or an Embedding becomes distributed in place. A module of a registered class gives way to one of the registered
distributed class, made of the arguments with which the first was made.
"""

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from toolkit.errors import did_you_mean
from toolkit.rank.frameworks.torch.modules import get_own_parameters
from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import partitioned
from toolkit.rank.modelparallel.torch.marking import created_modules
from toolkit.rank.modelparallel.torch.tensor import aws_names
from toolkit.rank.modelparallel.torch.tensor.delayed import delay_param_initialization, is_delayed
from toolkit.rank.modelparallel.torch.tensor.modules import (
    DistributedEmbedding,
    DistributedLinear,
    DistributedModule,
    distribute_in_place,
    get_conv1d_class,
)
from toolkit.rank.modelparallel.torch.tensor.sharding import MARK as DIVIDED
from toolkit.rank.modelparallel.torch.tensor.sharding import local_state, whole_shape
from toolkit.records import Record

# The attributes of a marked module, of one of a registered class, and of that class.
MARK, ARGUMENTS, ROW = "_smp_tensor_parallelism", "_smp_made_with", "_smp_registered"
IN_PLACE: dict[type[nn.Module], type[DistributedModule]] = {
    nn.Linear: DistributedLinear,
    nn.Embedding: DistributedEmbedding,
}
# The keys of tp_config. First those that smp.nn's layers take, then those that change no number: kernels of AWS's, and
# where parameters are. ALiBi is a part of the model, which a layer that replaces another would have to know.
OF_LAYERS = ("fused_softmax", "attention_in_fp32", "fp32_residual_addition")
WITHOUT_EFFECT = (
    "fused_bias_gelu",
    "fused_dropout",
    "flash_attention",
    "query_key_layer_scaling",
    "distribute_embedding",
    "zero_init",
)
OF_THE_MODEL = "use_alibi"
CONFIG = (*OF_LAYERS, *WITHOUT_EFFECT, OF_THE_MODEL)

InitHook = Callable[..., tuple[tuple[Any, ...], dict[str, Any]] | None]
ForwardHook = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


class Replacement(Record, frozen=True, kw_only=True):
    """The distributed class that replaces a module class; see `tp_register`."""

    kind: type[nn.Module]
    init_hook: InitHook | None = None
    forward_hook: ForwardHook | None = None
    return_hook: Callable[..., Any] | None = None


def tp_register(
    dist_module: type[nn.Module],
    init_hook: InitHook | None = None,
    forward_hook: ForwardHook | None = None,
    return_hook: Callable[..., Any] | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Decorate a module class whose marked modules *dist_module* replaces.

    *init_hook* and *forward_hook* translate the arguments of the class, and of its forward, into (args, kwargs) of
    *dist_module*'s; *init_hook* may return None for a module that stays as it is. *return_hook* translates what
    *dist_module* returns.
    """

    def register(module_class: type[nn.Module]) -> type[nn.Module]:
        tp_register_with_module(module_class, dist_module, init_hook, forward_hook, return_hook)
        return module_class

    return register


def tp_register_with_module(
    module_class: type[nn.Module],
    dist_module: type[nn.Module],
    init_hook: InitHook | None = None,
    forward_hook: ForwardHook | None = None,
    return_hook: Callable[..., Any] | None = None,
) -> None:
    """Let *dist_module* replace marked modules of *module_class*, which are made from now on; see `tp_register`.

    Raises:
        SMPError: one of them is no class of modules.
    """
    for argument in (module_class, dist_module):
        if not (isinstance(argument, type) and issubclass(argument, nn.Module)):
            raise SMPError(f"smp.tp_register_with_module: expected a class of nn.Module, found {argument!r}")
    if ROW not in vars(module_class):
        _remember_arguments(module_class)
    row = Replacement(kind=dist_module, init_hook=init_hook, forward_hook=forward_hook, return_hook=return_hook)
    setattr(module_class, ROW, row)


@contextlib.contextmanager
def tensor_parallelism(enabled: bool = True, **tp_config: Any) -> Iterator[None]:
    """Make modules that are created within the block tensor parallel, or (not *enabled*) not."""
    with created_modules(MARK, _mark(enabled, tp_config)):
        yield


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **tp_config: Any) -> None:
    """Make *module*, with everything below it, tensor parallel, or (not *enabled*) not.

    *tp_config*: arguments of the distributed modules that take them (OF_LAYERS); those WITHOUT_EFFECT are accepted.

    Raises:
        SMPError: no module, an argument that no distributed module takes, or a model that is distributed already.
    """
    if not isinstance(module, nn.Module):
        raise SMPError(f"smp.set_tensor_parallelism: expected a module, found {type(module).__name__}")
    mark = _mark(enabled, tp_config)
    for below in module.modules():
        below.__dict__[MARK] = mark


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tp_config: Any
) -> Iterator[None]:
    """Create modules within the block with *tensor_parallelism*, and with parameters of *dtype* (None: as usual).

    With the parameter delayed_parameter_initialization the values are made later (delay_param_initialization).
    """
    default_dtype = torch.get_default_dtype()
    later = world.current().cfg.delayed_parameter_initialization
    with _marking(enabled=tensor_parallelism, **tp_config), delay_param_initialization(later):
        if dtype is not None:
            torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(default_dtype)


_marking = tensor_parallelism


def _mark(enabled: bool, tp_config: Mapping[str, Any]) -> dict[str, Any] | None:
    for name in tp_config:
        if name not in CONFIG:
            hint = did_you_mean(name, CONFIG) or "Known: " + ", ".join(CONFIG) + "."
            raise SMPError(f"tensor parallelism: expected an argument of distributed modules, found {name!r}. {hint}")
    _report_unused(tuple(name for name in WITHOUT_EFFECT if tp_config.get(name)))
    return dict(tp_config) if enabled else None


@functools.cache  # Once for each set of names.
def _report_unused(names: tuple[str, ...]) -> None:
    if names:
        world.say(f"no effect on what the model computes: {', '.join(names)} (tensor_parallelism, model_creation)")


def distribute(model: nn.Module) -> nn.Module:
    """Return *model* with its marked modules distributed. Each rank keeps its parts of their parameters.

    Raises:
        SMPError: a module that cannot be, or one that shares a parameter with a module that is not marked.
    """
    holders: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for parameter in get_own_parameters(module).values():
            holders.setdefault(id(parameter), []).append(path)
    distributed = _Distributor(holders).visit("", model)
    if world.current().cfg.sharded_data_parallel_degree > 1 and any(
        hasattr(parameter, DIVIDED) for parameter in distributed.parameters()
    ):
        raise SMPError(
            "expected no tensor parallel modules beside sharded_data_parallel_degree, found some: parameters are "
            "divided in one way. Remove one of the two"
        )
    for path, module in distributed.named_modules():
        for name, parameter in get_own_parameters(module).items():
            if hasattr(parameter, DIVIDED) and not isinstance(module, DistributedModule):
                raise SMPError(
                    f"expected all modules that share a parameter to be tensor parallel, or none, found {path}.{name} "
                    f"({type(module).__name__}), which is not, and shares it with one that is: mark it, too "
                    "(smp.set_tensor_parallelism)"
                )
    _say_what_stays_whole(distributed)
    aws_names.add_aws_names(module for module in distributed.modules() if module.__dict__.get(MARK) is not None)
    return distributed


def _say_what_stays_whole(model: nn.Module) -> None:
    """Name the marked modules with matrices that every tensor parallel rank holds whole, in one line of the log."""
    this_world = world.current()
    if this_world.rank or len(this_world.group("tp")) == 1:
        return
    counts: Counter[str] = Counter()
    for module in model.modules():
        matrices = [parameter for parameter in get_own_parameters(module).values() if parameter.dim() > 1]
        if module.__dict__.get(MARK) is not None and any(not hasattr(matrix, DIVIDED) for matrix in matrices):
            counts[type(module).__name__] += 1
    if counts:
        listing = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        world.say(
            f"tensor parallelism leaves {listing} whole on every rank: it divides Linear, Embedding, transformers' "
            "Conv1D and classes registered with smp.tp_register"
        )


class _Distributor:
    """Distributes the modules of a model. *holders*: the paths of the modules that have a parameter, by its id."""

    def __init__(self, holders: Mapping[int, list[str]]) -> None:
        self._holders = holders
        this_world = world.current()
        # A part of one is the whole: then sharding can divide the parameters in its own way.
        self._whole = this_world.cfg.sharded_data_parallel_degree > 1 and len(this_world.group("tp")) == 1
        self._done: dict[int, nn.Module] = {}

    def visit(self, path: str, module: nn.Module) -> nn.Module:
        """Return the module that replaces *module*, or *module* itself."""
        if id(module) not in self._done:
            self._done[id(module)] = self._visit(path, module)
        return self._done[id(module)]

    def _visit(self, path: str, module: nn.Module) -> nn.Module:
        config = module.__dict__.get(MARK)
        if config is not None:
            row = vars(type(module)).get(ROW)
            if row is not None and (replacement := _make_replacement(module, row, config)) is not None:
                self._check_alone(path, module)
                return replacement
            kind = IN_PLACE.get(type(module)) or get_conv1d_class(module)
            if kind is not None:
                if not self._whole:
                    distribute_in_place(module, kind)
                return module
        for name, child in module.named_children():
            below = f"{path}.{name}" if path else name
            replacement = self.visit(below, child)
            if replacement is not child:
                setattr(module, name, replacement)
        return module

    def _check_alone(self, path: str, module: nn.Module) -> None:
        for parameter in module.parameters():
            for other in self._holders[id(parameter)]:
                if other != path and not other.startswith(f"{path}." if path else ""):
                    raise SMPError(
                        f"expected no parameter of module {path} ({type(module).__name__}), which a distributed module "
                        f"replaces, outside of it, found one in {other or 'the model itself'}: register a class that "
                        "has both, or set smp.set_tensor_parallelism(module, False)"
                    )


def _make_replacement(module: nn.Module, row: Replacement, config: Mapping[str, Any]) -> nn.Module | None:
    """Return the module of class row.kind that takes *module*'s place, None: it stays."""
    name = type(module).__name__
    arguments = module.__dict__.get(ARGUMENTS) or _arguments_from_config(module)
    if arguments is None:
        raise SMPError(f"expected {name} to be registered (smp.tp_register) before the model is made, found it later")
    args, kwargs = arguments
    if row.init_hook is not None:
        translated = row.init_hook(*args, **kwargs)
        if translated is None:
            return None
        args, kwargs = translated
    with delay_param_initialization(is_delayed(module)):
        replacement = row.kind(*args, **{**kwargs, **_select_options(row.kind, config)})
    if not is_delayed(module) and not _copy_values(replacement, module) and world.current().cfg.match_weights:
        raise SMPError(
            f"_match_weights: expected {row.kind.__name__} to have parameters of the names and shapes of {name}, which "
            "it replaces, found others: remove the parameter, or load the values with load_state_dict"
        )
    replacement.train(module.training)
    for mark in (partitioned.MARK, MARK):
        if mark in module.__dict__:
            replacement.__dict__[mark] = module.__dict__[mark]
    if (forward_hook := row.forward_hook) is not None:
        replacement.register_forward_pre_hook(lambda _, args, kwargs: forward_hook(*args, **kwargs), with_kwargs=True)
    if (return_hook := row.return_hook) is not None:
        replacement.register_forward_hook(lambda _, __, output: return_hook(output))
    return replacement


def _arguments_from_config(module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of *module* if it is one of transformers, made of a configuration that it still holds.

    A script may register such a class when its model is made already (AWS's for GPT-2 with a layer of its own).
    """
    names = list(inspect.signature(type(module).__init__).parameters)[1:]
    if names[:1] != ["config"] or set(names[1:]) - {"layer_idx"}:
        return None
    configs = {
        id(config): config
        for submodule in module.modules()
        if (config := getattr(submodule, "config", None)) is not None
    }
    layers = {submodule.layer_idx for submodule in module.modules() if hasattr(submodule, "layer_idx")}
    if len(configs) != 1:
        return None
    has_layer = "layer_idx" in names and len(layers) == 1
    return tuple(configs.values()), {"layer_idx": layers.pop()} if has_layer else {}


def _select_options(kind: type[nn.Module], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of *config* that *kind* takes.

    Raises:
        SMPError: *config* asks for numbers that *kind* does not compute.
    """
    parameters = inspect.signature(kind).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    taken = {name: value for name, value in config.items() if name in parameters or (takes_any and name in OF_LAYERS)}
    for name in (OF_THE_MODEL, "attention_in_fp32", "fp32_residual_addition"):
        if config.get(name) and name not in taken:
            raise SMPError(
                f"tensor parallelism: expected {name} false, because {kind.__name__}, which replaces a module, does "
                "not have it, found true: remove it, or register a class that takes it (smp.tp_register)"
            )
    return taken


def _copy_values(replacement: nn.Module, module: nn.Module) -> bool:
    """Give *replacement* the values of *module*; False: they have parameters of other names or whole shapes."""
    shapes = {name: whole_shape(parameter) for name, parameter in replacement.named_parameters()}
    is_alike = shapes == {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if is_alike:
        replacement.load_state_dict(local_state(replacement, module.state_dict()))
    return is_alike


def _remember_arguments(module_class: type[nn.Module]) -> None:
    """Keep in each new module of exactly this class the arguments with which it is made."""
    created = module_class.__init__

    @functools.wraps(created)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if type(self) is module_class:
            self.__dict__[ARGUMENTS] = (args, kwargs)
        created(self, *args, **kwargs)

    module_class.__init__ = init  # type: ignore[method-assign]
