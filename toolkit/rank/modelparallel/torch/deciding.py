"""Decides which module goes to which partition: from a file, or by a profiling pass over one microbatch.

The first rank decides; the decision goes to every rank, and to output/data/partition.json, from where a later job takes
it (the parameter partition_file). `toolkit partition profile SCRIPT` is a job that ends there.
"""

import contextlib
import hashlib
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.errors import ContractError
from toolkit.parallelism import decision as decisions
from toolkit.parallelism import partitioner
from toolkit.parallelism.decision import PartitionDecision
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.parallelism.tree import Module
from toolkit.rank.frameworks.torch.autograd import can_number_nodes
from toolkit.rank.frameworks.torch.modules import get_own_parameters
from toolkit.rank.frameworks.torch.tensors import pytree
from toolkit.rank.modelparallel import output
from toolkit.rank.modelparallel.torch.module_costs import Measurement, ModuleCosts
from toolkit.rank.modelparallel.torch.tensor.sharding import whole_shape
from toolkit.rank.modelparallel.world import World

MIB = 2**20


def decide(
    module: nn.Module, call_once: Callable[[], Any], this_world: World, options: Mapping[str, Any]
) -> PartitionDecision:
    """Return the decision for *module*: from the parameter partition_file, or from a profiling pass.

    *call_once* runs the script's step function on one microbatch, with *module* whole on this rank. *options*:
    DistributedModel's trace_device, trace_execution_times and trace_memory_usage. The decision is written to
    output/data. The profiling job (World.is_profile) ends here, with the exit code 0.

    Raises:
        ContractError: the file is none, of another model or of another number of partitions; or the model has fewer
            modules with parameters than partitions.
    """
    cfg = this_world.cfg
    if cfg.partition_file and not this_world.is_profile:
        decision = read_decision(Path(cfg.partition_file), module, cfg.partitions)
    else:
        decision = _measure_decision(module, call_once, cfg, options, this_world.is_profile)
    if this_world.is_profile:
        write(decision, this_world.folder)
        print(f"the partition decision is in {this_world.folder / decisions.FILE}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(0)
    output.try_to(lambda: write(decision, this_world.folder), "the partition decision")
    return decision


def record_manual(module: nn.Module, assignment: dict[str, int], this_world: World) -> PartitionDecision:
    """Return the script's own decision, and write it to output/data: the script has placed the modules itself."""
    weight = this_world.cfg.memory_weight
    decision = PartitionDecision(
        fingerprint=fingerprint(module),
        devices=this_world.cfg.partitions,
        memory_weight=0.8 if weight is None else weight,
        method="manual",
        reason="The script has placed the modules (auto_partition is false)."
        if this_world.cfg.partitions > 1
        else "One partition holds the whole model.",
        assignment=assignment,
        tree=measure(module, None),
    )
    output.try_to(lambda: write(decision, this_world.folder), "the partition decision")
    return decision


def write(decision: PartitionDecision, folder: Path) -> None:
    """Write *decision* into *folder*, the job's output/data."""
    folder.mkdir(parents=True, exist_ok=True)
    decisions.write(decision, folder / decisions.FILE)


def read_decision(path: Path, module: nn.Module, partitions: int) -> PartitionDecision:
    """Return the decision in *path*.

    Raises:
        ContractError: it is none, of another model or of another number of partitions.
    """
    decision = decisions.read_for_partitions(path.absolute(), partitions, VARIABLE)
    own_fingerprint = fingerprint(module)
    if decision.fingerprint != own_fingerprint:
        raise ContractError(
            f"expected a decision for this model, {type(module).__name__} with the fingerprint {own_fingerprint}, "
            f"found one for {decision.fingerprint}: paths, classes or parameter shapes of modules differ",
            where=f"{VARIABLE}: partition_file {path}",
            hint="Make it again (toolkit partition profile SCRIPT), or remove partition_file.",
        )
    return decision


def fingerprint(module: nn.Module) -> str:
    """Return a hash of *module*'s structure: paths and classes of modules, shapes and sharing of parameters."""
    first: dict[int, str] = {}
    digest = hashlib.sha256()
    for path, submodule in module.named_modules():
        digest.update(f"{path} {type(submodule).__name__}\n".encode())
        for name, parameter in get_own_parameters(submodule).items():
            owner = first.setdefault(id(parameter), f"{path}.{name}")
            digest.update(f"  {name} {whole_shape(parameter)} {owner}\n".encode())
    return digest.hexdigest()[:32]


def _measure_decision(
    module: nn.Module, call_once: Callable[[], Any], cfg: Parameters, options: Mapping[str, Any], is_profile: bool
) -> PartitionDecision:
    begin_s, before_bytes = time.monotonic(), _peak_bytes()
    # A tensor parallel group would have to run the pass together; a model that is too large has no whole run at all.
    is_whole = cfg.tensor_parallel_degree == 1 and not any(parameter.is_meta for parameter in module.parameters())
    if cfg.skip_tracing or not is_whole:
        tree = measure(module, None)
        how = "by bytes of parameters alone"
    else:
        times, memory = (is_profile or bool(options.get(name)) for name in _MEASURED)
        times = times and can_number_nodes()
        with _restore_state(module), _on_device(module, options.get("trace_device", "gpu")):
            tree = measure(module, call_once, times=times, memory=memory)
        took = f"{time.monotonic() - begin_s:.2f} s, {max(0, _peak_bytes() - before_bytes) / MIB:.0f} MiB more memory"
        how = (
            f"computing {'timed' if times else 'estimated by operations'}, activations "
            f"{'as saved' if memory else 'estimated by outputs'}, one microbatch: {took}"
        )
    weight = cfg.memory_weight if cfg.memory_weight is not None else 0.8
    return partitioner.decide(
        tree,
        cfg.partitions,
        weight,
        fingerprint(module),
        profiled_by=f"torch {torch.__version__}, {how}",
        source=f"{VARIABLE}: partitions",
    )


_MEASURED = ("trace_execution_times", "trace_memory_usage")


def measure(
    module: nn.Module, call_once: Callable[[], Any] | None, *, times: bool = True, memory: bool = True
) -> Module:
    """Return the tree of *module* with its costs.

    *times*: computing is timed, else estimated by operations. *memory*: activations are what autograd saves, else the
    outputs of modules without children. *call_once* None: neither is known, only the parameters are.
    """
    if call_once is None:
        figures = {path: ModuleCosts() for path, _ in module.named_modules()}
        uses = {(path, f"{path}.out_proj") for path, submodule in module.named_modules() if _takes_weight(submodule)}
    else:
        measurement = Measurement(module, call_once)
        measurement.run(times=times)
        figures, uses = measurement.costs, measurement.uses
    return _Tree(module, figures, uses, is_timed=times, is_saved=memory, is_run=call_once is not None).root


def _takes_weight(module: nn.Module) -> bool:
    """Return whether *module* is the one of torch that uses a child's weight without calling the child."""
    return isinstance(module, nn.MultiheadAttention)


class _Tree:
    """Builds the tree of a model from the figures of its modules."""

    def __init__(
        self,
        module: nn.Module,
        figures: dict[str, ModuleCosts],
        uses: set[tuple[str, str]],
        *,
        is_timed: bool,
        is_saved: bool,
        is_run: bool,
    ) -> None:
        self._figures = figures
        self._users: dict[str, set[str]] = {}
        for user, owner in uses:
            self._users.setdefault(owner, set()).add(user)
            self._users.setdefault(user, set()).add(owner)
        self._is_timed, self._is_saved, self._is_run = is_timed, is_saved, is_run
        self._holders: dict[int, list[str]] = {}
        for path, submodule in module.named_modules():
            for parameter in get_own_parameters(submodule).values():
                if path not in self._holders.setdefault(id(parameter), []):
                    self._holders[id(parameter)].append(path)
        self._visited: set[int] = set()
        self._counted: set[int] = set()
        self.root = self._node("", module)

    def _node(self, path: str, module: nn.Module) -> Module:
        self._visited.add(id(module))
        parameters = list(get_own_parameters(module).values())
        new = {id(parameter): parameter for parameter in parameters if id(parameter) not in self._counted}
        self._counted.update(new)
        children = []
        for name, child in self._in_order(path, module):
            if id(child) not in self._visited:
                children.append(self._node(name, child))
        costs = self._figures[path]
        used = self._users.get(path, set())
        saved = costs.saved_bytes if self._is_saved else costs.output_bytes if not children else 0
        return Module(
            name=path,
            kind=type(module).__name__,
            parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in new.values())
            + sum(child.parameter_bytes for child in children),
            activation_bytes=saved + sum(child.activation_bytes for child in children),
            input_bytes=costs.input_bytes,
            output_bytes=costs.output_bytes,
            compute_s=(costs.time_s if self._is_timed else costs.estimated_s)
            + sum(child.compute_s for child in children),
            calls=costs.calls if self._is_run else int(type(module).forward is not nn.Module.forward),
            sequential=isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward,
            shares=tuple(
                sorted(({other for parameter in parameters for other in self._holders[id(parameter)]} | used) - {path})
            ),
            children=tuple(children),
        )

    def _in_order(self, path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return the children in order of their first call, or the first call below them; uncalled ones last."""
        children = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
        return sorted(children, key=lambda named_child: self._first_call(*named_child))

    def _first_call(self, path: str, module: nn.Module) -> float:
        below = (f"{path}.{name}" if name else path for name, _ in module.named_modules())
        calls = (self._figures[name].first_call for name in below if name in self._figures)
        return min((call for call in calls if call >= 0), default=float("inf"))


@contextlib.contextmanager
def _restore_state(module: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients, and the states of the random generators (torch, NumPy, Python) after the block."""
    states = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, old_values in buffers:
                buffer.copy_(old_values)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


@contextlib.contextmanager
def _on_device(module: nn.Module, device: str) -> Iterator[None]:
    """Within the block *module* is on trace_device *device*, "gpu" or "cpu"; without a GPU it stays where it is.

    Its arguments come to that device, and its outputs go where the arguments were. Untried: no GPU was at hand.
    """
    if not torch.cuda.is_available():
        yield
        return
    came_from: list[torch.device] = []
    home = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    target = torch.device("cuda", torch.cuda.current_device()) if device == "gpu" else torch.device("cpu")

    def move_tensors(values: Any, to: torch.device) -> Any:
        return pytree.tree_map(lambda leaf: leaf.to(to) if isinstance(leaf, torch.Tensor) else leaf, values)

    def to_target(_: nn.Module, args: Any, kwargs: Any) -> Any:
        devices = [leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        came_from.append(devices[0] if devices else target)
        return move_tensors((args, kwargs), target)

    handles = (
        module.register_forward_pre_hook(to_target, prepend=True, with_kwargs=True),
        module.register_forward_hook(lambda _, __, output: move_tensors(output, came_from.pop())),
    )
    try:
        module.to(target)
        yield
    finally:
        for handle in handles:
            handle.remove()
        module.to(home)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
