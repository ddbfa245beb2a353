"""Which module goes to which partition: from a file, or by a profiling pass over one microbatch.

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
from torch.utils._pytree import tree_leaves, tree_map

from toolkit.errors import ContractError
from toolkit.parallelism import decision as decisions
from toolkit.parallelism import partitioner
from toolkit.parallelism.decision import Decision
from toolkit.parallelism.parameters import VARIABLE, Parameters
from toolkit.parallelism.tree import Module
from toolkit.rank.modelparallel import output
from toolkit.rank.modelparallel.torch.module_costs import Figures, Measurement
from toolkit.rank.modelparallel.torch.tensor.sharding import whole_shape
from toolkit.rank.modelparallel.world import World

MIB = 2**20


def decide(module: nn.Module, call_once: Callable[[], Any], here: World, options: Mapping[str, Any]) -> Decision:
    """Return the decision for *module*: that of the parameter partition_file, or of a profiling pass.

    *call_once* runs the script's step function on one microbatch, with *module* whole on this rank. *options*:
    DistributedModel's trace_device, trace_execution_times and trace_memory_usage. The decision is written to
    output/data. The profiling job (World.is_profile) ends here, with the exit code 0.

    Raises:
        ContractError: the file is none, of another model or of another number of partitions; or the model has fewer
            modules with parameters than partitions.
    """
    cfg = here.cfg
    if cfg.partition_file and not here.is_profile:
        found = of_file(Path(cfg.partition_file), module, cfg.partitions)
    else:
        found = _measured(module, call_once, cfg, options, here.is_profile)
    if here.is_profile:
        write(found, here.folder)
        print(f"the partition decision is in {here.folder / decisions.FILE}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(0)
    output.try_to(lambda: write(found, here.folder), "the partition decision")
    return found


def manual(module: nn.Module, assignment: dict[str, int], here: World) -> Decision:
    """Return the decision of the script, which has placed the modules itself; it is written to output/data."""
    weight = here.cfg.memory_weight
    found = Decision(
        fingerprint=fingerprint(module),
        devices=here.cfg.partitions,
        memory_weight=0.8 if weight is None else weight,
        method="manual",
        reason="The script has placed the modules (auto_partition is false)."
        if here.cfg.partitions > 1
        else "One partition holds the whole model.",
        assignment=assignment,
        tree=measure(module, None),
    )
    output.try_to(lambda: write(found, here.folder), "the partition decision")
    return found


def write(decision: Decision, folder: Path) -> None:
    """Write *decision* into *folder*, the job's output/data."""
    folder.mkdir(parents=True, exist_ok=True)
    decisions.write(decision, folder / decisions.FILE)


def of_file(path: Path, module: nn.Module, partitions: int) -> Decision:
    """Return the decision in *path*.

    Raises:
        ContractError: it is none, of another model or of another number of partitions.
    """
    found = decisions.for_partitions(path.absolute(), partitions, VARIABLE)
    ours = fingerprint(module)
    if found.fingerprint != ours:
        raise ContractError(
            f"expected a decision for this model, {type(module).__name__} with the fingerprint {ours}, found one for "
            f"{found.fingerprint}: paths, classes or parameter shapes of modules differ",
            where=f"{VARIABLE}: partition_file {path}",
            hint="Make it again (toolkit partition profile SCRIPT), or remove partition_file.",
        )
    return found


def fingerprint(module: nn.Module) -> str:
    """Return a hash of *module*'s structure: paths and classes of modules, shapes and sharing of parameters."""
    first: dict[int, str] = {}
    digest = hashlib.sha256()
    for path, each in module.named_modules():
        digest.update(f"{path} {type(each).__name__}\n".encode())
        for name, one in each._parameters.items():
            if one is not None:
                owner = first.setdefault(id(one), f"{path}.{name}")
                digest.update(f"  {name} {whole_shape(one)} {owner}\n".encode())
    return digest.hexdigest()[:32]


def _measured(
    module: nn.Module, call_once: Callable[[], Any], cfg: Parameters, options: Mapping[str, Any], is_profile: bool
) -> Decision:
    begin_s, before_bytes = time.monotonic(), _peak_bytes()
    # A tensor parallel group would have to run the pass together; a model that is too large has no whole run at all.
    is_whole = cfg.tensor_parallel_degree == 1 and not any(one.is_meta for one in module.parameters())
    if cfg.skip_tracing or not is_whole:
        tree = measure(module, None)
        how = "by bytes of parameters alone"
    else:
        times, memory = (is_profile or bool(options.get(name)) for name in _MEASURED)
        with _put_back(module), _on_device(module, options.get("trace_device", "gpu")):
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
        figures = {path: Figures() for path, _ in module.named_modules()}
        uses = {(path, f"{path}.out_proj") for path, each in module.named_modules() if _takes_weight(each)}
    else:
        found = Measurement(module, call_once)
        found.run(times=times)
        figures, uses = found.figures, found.uses
    return _Tree(module, figures, uses, is_timed=times, is_saved=memory, is_run=call_once is not None).root


def _takes_weight(module: nn.Module) -> bool:
    """True for the module of torch that takes a child's weight and does not call the child."""
    return isinstance(module, nn.MultiheadAttention)


class _Tree:
    """Builds the tree of a model from the figures of its modules."""

    def __init__(
        self,
        module: nn.Module,
        figures: dict[str, Figures],
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
        for path, each in module.named_modules():
            for one in each._parameters.values():
                if one is not None and path not in self._holders.setdefault(id(one), []):
                    self._holders[id(one)].append(path)
        self._visited: set[int] = set()
        self._counted: set[int] = set()
        self.root = self._node("", module)

    def _node(self, path: str, module: nn.Module) -> Module:
        self._visited.add(id(module))
        own = [one for one in module._parameters.values() if one is not None]
        new = {id(one): one for one in own if id(one) not in self._counted}
        self._counted.update(new)
        children = []
        for name, child in self._in_order(path, module):
            if id(child) not in self._visited:
                children.append(self._node(name, child))
        its = self._figures[path]
        used = self._users.get(path, set())
        saved = its.saved_bytes if self._is_saved else its.output_bytes if not children else 0
        return Module(
            name=path,
            kind=type(module).__name__,
            parameter_bytes=sum(one.numel() * one.element_size() for one in new.values())
            + sum(child.parameter_bytes for child in children),
            activation_bytes=saved + sum(child.activation_bytes for child in children),
            input_bytes=its.input_bytes,
            output_bytes=its.output_bytes,
            compute_s=(its.time_s if self._is_timed else its.estimated_s) + sum(child.compute_s for child in children),
            calls=its.calls if self._is_run else int(type(module).forward is not nn.Module.forward),
            sequential=isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward,
            shares=tuple(sorted(({other for one in own for other in self._holders[id(one)]} | used) - {path})),
            children=tuple(children),
        )

    def _in_order(self, path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return the children in order of their first call, or that of what is below them; others last."""
        named = [(f"{path}.{name}" if path else name, child) for name, child in module.named_children()]
        return sorted(named, key=lambda each: self._first_call(*each))

    def _first_call(self, path: str, module: nn.Module) -> float:
        below = (f"{path}.{name}" if name else path for name, _ in module.named_modules())
        calls = (self._figures[name].first_call for name in below if name in self._figures)
        return min((call for call in calls if call >= 0), default=float("inf"))


@contextlib.contextmanager
def _put_back(module: nn.Module) -> Iterator[None]:
    """Put back at the end: the states of random generators, buffers, gradients, and what python's random holds."""
    states = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gradients = [(one, one.grad) for one in module.parameters()]
    for one, _ in gradients:
        one.grad = None
    try:
        yield
    finally:
        for one, gradient in gradients:
            one.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(drawn)


@contextlib.contextmanager
def _on_device(module: nn.Module, device: str) -> Iterator[None]:
    """Within the block *module* is on trace_device *device*, "gpu" or "cpu"; without a GPU it stays where it is.

    Its arguments come to that device, and its outputs go where the arguments were. Untried: no GPU was at hand.
    """
    if not torch.cuda.is_available():
        yield
        return
    came_from: list[torch.device] = []
    home = next((one.device for one in module.parameters()), torch.device("cpu"))
    target = torch.device("cuda", torch.cuda.current_device()) if device == "gpu" else torch.device("cpu")

    def moved(values: Any, to: torch.device) -> Any:
        return tree_map(lambda one: one.to(to) if isinstance(one, torch.Tensor) else one, values)

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        given = [one.device for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        came_from.append(given[0] if given else target)
        return moved((args, kwargs), target)

    handles = (
        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
        module.register_forward_hook(lambda _, __, output: moved(output, came_from.pop())),
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
