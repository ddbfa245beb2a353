"""DistributedModel: a module whose parts are on several ranks."""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.parallelism.decision import PartitionDecision
from toolkit.rank.frameworks.torch.modules import copy_versions
from toolkit.rank.modelparallel import norms
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import (
    checkpointing,
    deciding,
    partitioned,
    scaling,
    sharded,
    states,
    yielding,
)
from toolkit.rank.modelparallel.torch.api import state
from toolkit.rank.modelparallel.torch.averaging import CommHook
from toolkit.rank.modelparallel.torch.nodes import link_calls
from toolkit.rank.modelparallel.torch.replicas import ReplicaAverager
from toolkit.rank.modelparallel.torch.step import StepRunner, get_runner
from toolkit.rank.modelparallel.torch.tensor import delayed, sharding
from toolkit.rank.modelparallel.torch.tensor.distribute import distribute
from toolkit.rank.modelparallel.torch.tensor.queries import TensorParallel
from toolkit.rank.modelparallel.torch.wrapper import Wrapper

DECISION = "smp.decision"
PARTIAL = "_smp_is_partial"


class DistributedModel(TensorParallel, Wrapper):
    """*module*, partitioned in the first step. Its names (of parameters, modules) are those of *module*.

    The options have the library's names. `options` keeps them for those who follow them: the profiling pass
    (trace_device, trace_execution_times, trace_memory_usage) and the averaging over replicas (the rest).
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        if lazy := [name for name, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)]:
            raise SMPError(
                f"DistributedModel: expected parameters with shapes, found those of lazy modules without: {lazy[:5]}. "
                "Call the model once on an example before, on every rank with the same seed"
            )
        module = distribute(module)
        super().__init__(module)
        if trace_device not in ("gpu", "cpu"):
            raise SMPError(f'DistributedModel: expected trace_device "gpu" or "cpu", found {trace_device!r}')
        self.options = {
            "trace_device": trace_device,
            "trace_execution_times": trace_execution_times,
            "trace_memory_usage": trace_memory_usage,
            "overlapping_allreduce": overlapping_allreduce,
            "backward_passes_per_step": backward_passes_per_step,
            "average_grads_across_microbatches": average_grads_across_microbatches,
            "bucket_cap_mb": bucket_cap_mb,
            "broadcast_buffers": broadcast_buffers,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self.partitioned = False
        self.decision: PartitionDecision | None = None
        self.optimizer: Any = None  # DistributedOptimizer puts itself here.
        self.loss_scale = 1.0  # What backward multiplies the gradients with.
        self.local = threading.local()  # `forward` and `backward` of a thread that runs the model in another way.
        self._assignment: dict[str, int] = {}
        self._additions = partitioned.Additions(lambda: self._runner.is_under_way)
        self._added: dict[str, partitioned.Addition] = {}  # Additions for which no `on_addition` callback ran.
        self._on_addition: list[Callable[[DistributedModel], None]] = []
        self._on_partition: list[Callable[[DistributedModel], None]] = []
        self._on_step_end: list[Callable[[DistributedModel], None]] = []
        self._on_post_partition: list[Callable[[DistributedModel, Any], None]] = []
        self._to_load: tuple[Mapping[str, Any], bool, bool] | None = None  # The arguments of _load_local.
        self._runner: StepRunner = get_runner()
        if self._runner.agent.model is not None:
            raise SMPError(
                "expected one DistributedModel in this process, found a second: wrap one module that has both"
            )
        self._runner.attach(self)
        state.model = self
        if self._world.cfg.partitions == 1:
            if delayed.is_delayed(module):
                delayed.initialise(module, lambda _: True)
            module.to(self._runner.device)
        if (dtype := scaling.get_working_dtype(self._world.cfg)) is not None:
            module.to(dtype)
        if self._world.cfg.sharded_data_parallel_degree > 1:
            sharded.shard(module, self._world.cfg, state.process_groups["rdp"], self._runner.device)
        self.on_partition(checkpointing.checkpoint_marked_modules)
        if self._world.cfg.fp32_grad_accumulation:
            for register in (self.on_partition, self.on_addition):
                register(lambda model: scaling.accumulate_in_fp32(model.local_parameters()))
        for name in ("clip_grad_norm_", "get_total_norm"):
            instead = "use optimizer.clip_master_grads(max_norm), whose norm is the whole model's"
            norms.notice(torch.nn.utils, name, instead, _includes_model)
        self.replicas = ReplicaAverager(
            self,
            {kind: state.process_groups[kind] for kind in ("rdp", "dp")},
            overlapping_allreduce=overlapping_allreduce,
            backward_passes_per_step=backward_passes_per_step,
            bucket_cap_mb=bucket_cap_mb,
            broadcast_buffers=broadcast_buffers,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )

    def get_module(self) -> nn.Module:
        """Return the wrapped module, with its distributed modules."""
        module: nn.Module = self.module
        return module

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy the module alone, with the values of this rank: the rest belongs to this process.

        Parameters of other partitions are on the meta device then; `state_dict` has them all.
        """
        return _identity, (self.module,)

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self._runner.device

    @property
    def _world(self) -> Any:
        return self._runner.world

    # Running.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on one microbatch, inside a step."""
        cfg = self._world.cfg
        instead = getattr(self.local, "forward", None)
        if instead is not None:
            return scaling.to_fp32(instead(*args, **kwargs), cfg)
        is_local = self._runner.is_tracing or self._world.cfg.partitions == 1
        if not is_local and self._runner.agent.scheduler.task is None:
            raise SMPError(
                "expected the DistributedModel to be called inside a function with @smp.step, found a call outside of "
                "one: its modules are on several ranks. Put the call into a step function, for evaluation, too"
            )
        args, kwargs = scaling.to_working_dtype((args, kwargs), cfg)
        return scaling.to_fp32(self.module(*args, **kwargs), cfg)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Run the backward pass from *tensors*, a tensor or several, with *grad_tensors* (None: of ones).

        The gradients are averaged over the microbatches (average_grads_across_microbatches).
        """
        instead = getattr(self.local, "backward", None)
        if instead is not None:
            instead(tensors, grad_tensors)
            return
        roots, gradients = self._roots(tensors, grad_tensors)
        task = self._runner.agent.scheduler.task
        if self._runner.is_tracing or self._world.cfg.partitions == 1:
            self._runner.ran_backward()
            torch.autograd.backward(roots, gradients)
            return
        if task is None:
            raise SMPError(
                "expected model.backward(loss) inside a function with @smp.step, found a call outside of one"
            )
        self._runner.ran_backward()
        scheduler = self._runner.agent.scheduler
        scheduler.set_backward(task, is_backward=True)
        try:
            self._runner.pass_gate(task)
            if task.calls > 1 and self._runner.agent.links_calls:
                link_calls(root.grad_fn for root in roots if root.grad_fn is not None)
            torch.autograd.backward(roots, gradients)
        finally:
            scheduler.set_backward(task, is_backward=False)

    def _roots(self, tensors: Any, grad_tensors: Any) -> tuple[list[Tensor], list[Tensor]]:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if grad_tensors is None:
            gradients: list[Tensor | None] = [None] * len(roots)
        else:
            gradients = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
        if len(gradients) != len(roots):
            raise SMPError(f"model.backward: expected {len(roots)} grad_tensors, as tensors, found {len(gradients)}")
        scale = self.gradient_scale
        for root, gradient in zip(roots, gradients, strict=True):
            if gradient is None and root.numel() != 1:
                raise SMPError(
                    f"model.backward: expected a loss of one element, or grad_tensors, found the shape "
                    f"{tuple(root.shape)}: give loss.mean() or loss.sum()"
                )
        return roots, [
            torch.full_like(root, scale) if gradient is None else gradient * scale
            for root, gradient in zip(roots, gradients, strict=True)
        ]

    @property
    def gradient_scale(self) -> float:
        """The factor of the gradients in `backward`."""
        count = self._world.cfg.microbatches if self.options["average_grads_across_microbatches"] else 1
        return self.loss_scale / count

    def run_step_callbacks(self) -> None:
        """Call the callbacks of `on_step_end`, after a step with a backward pass."""
        for callback in self._on_step_end:
            callback(self)

    # Partitioning.

    def partition(self, call_once: Callable[[], Any] | None, tracing: Callable[[], Any]) -> None:
        """Decide the partition of each module, and keep this rank's. All ranks call this, rank 0 with *call_once*.

        Raises:
            SMPError: rank 0 could not decide; a partition without modules.
        """
        this_world = self._world
        if this_world.rank == 0:
            try:
                assert call_once is not None
                decision: PartitionDecision | str = self._decide(call_once, tracing)
            except Exception as error:
                self._broadcast(f"{type(error).__name__}: {error}")
                raise
            self._broadcast(decision)
        else:
            decision = this_world.messenger.receive(0, DECISION).payload
        if isinstance(decision, str):
            raise SMPError(f"rank 0 could not partition the model: {decision}")
        self.decision = decision
        if delayed.is_delayed(self.module):
            partitions, own_partition = partitioned.get_partitions(self.module, decision), this_world.rank_in("pp")
            delayed.initialise(self.module, lambda path: partitions[path] == own_partition)
        self._additions.pop(self)
        self._place(partitioned.get_partitions(self.module, decision))
        self.partitioned = True
        if self._to_load is not None:
            to_load, self._to_load = self._to_load, None
            self._load_local(*to_load)
        for callback in self._on_partition:
            callback(self)
        for hook in self._on_post_partition:
            hook(self, self.optimizer)

    def _place(self, assignment: dict[str, int]) -> None:
        """Put every module into its partition of *assignment*; this may be called again."""
        own_partition, agent = self._world.rank_in("pp"), self._runner.agent
        self._assignment, self._paths = assignment, None
        partitioned.apply_partitions(self.module, assignment, own_partition, self._runner.device, agent.call)
        yielding.install_yields(self.module, assignment, own_partition, agent.scheduler.yield_token)
        local = [parameter for parameter in self.module.parameters() if parameter.device.type != "meta"]
        self._runner.parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in local)

    def place_additions(self) -> None:
        """Assign partitions to modules and parameters added after the partition; inside a step this waits."""
        if self.partitioned and not self._runner.is_under_way and (added := self._additions.pop(self)):
            self._added |= added
            self._place(partitioned.extend_assignment(self.module, self._assignment, self._world.cfg.partitions))

    def begin_step(self) -> dict[str, bool]:
        """Begin a step, on all ranks alike.

        Return the paths at which the script has changed the model since the last step. True: the change is wrong on
        one rank alone; a module without a state may be on its partition's rank alone.
        """
        self.place_additions()
        added, self._added = self._added, {}
        if added:
            for callback in self._on_addition:
                callback(self)
        own_partition = self._world.rank_in("pp")
        return {
            path: addition.has_state or self._assignment.get(path.removeprefix("module.")) != own_partition
            for path, addition in added.items()
            if not addition.in_step
        }

    def on_addition(self, callback: "Callable[[DistributedModel], None]") -> None:
        """Call *callback*(model) on every rank before a step if modules or parameters were added to the model."""
        self._on_addition.append(callback)

    def _broadcast(self, decision: "PartitionDecision | str") -> None:
        for rank in range(1, self._world.size):
            self._world.messenger.send(rank, DECISION, None, decision)

    def _decide(self, call_once: Callable[[], Any], tracing: Callable[[], Any]) -> PartitionDecision:
        this_world, cfg = self._world, self._world.cfg
        if cfg.auto_partition and (marked := partitioned.get_marked_partitions(self.module)):
            warnings.warn(
                f"smp.partition and smp.set_partition have no effect on {len(marked)} modules, because auto_partition "
                "is true: set the parameters auto_partition to false and default_partition",
                stacklevel=2,
            )
        if this_world.is_profile or cfg.partition_file or (cfg.auto_partition and cfg.partitions > 1):
            with tracing():
                return deciding.decide(self.module, call_once, this_world, self.options)
        assignment = partitioned.assign_manually(self.module, cfg.partitions, cfg.default_partition or 0)
        return deciding.record_manual(self.module, assignment, this_world)

    def assignment(self) -> dict[str, int]:
        """Return the partition of every module by path.

        Raises:
            SMPError: the model is not partitioned yet.
        """
        self._check_partitioned("assignment")
        return dict(self._assignment)

    def on_partition(self, callback: "Callable[[DistributedModel], None]") -> None:
        """Call *callback*(model) when the model is partitioned; at once if it is."""
        self._on_partition.append(callback)
        if self.partitioned:
            callback(self)

    def on_step_end(self, callback: "Callable[[DistributedModel], None]") -> None:
        """Call *callback*(model) on every rank after each step with a backward pass."""
        self._on_step_end.append(callback)

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Let *hook*(state, bucket) average gradients, as with torch.nn.parallel.DistributedDataParallel."""
        self.replicas.register_comm_hook(state, hook)

    def register_post_partition_hook(self, hook: "Callable[[DistributedModel, Any], None]") -> None:
        """Call *hook*(model, optimizer) once, when the model is partitioned; at once if it is."""
        if self.partitioned:
            hook(self, self.optimizer)
        else:
            self._on_post_partition.append(hook)

    # The former name.
    register_post_step_hook = register_post_partition_hook

    # The parts on this rank.

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield this rank's modules with their paths."""
        self._check_partitioned("local_named_modules")
        own_partition = self._world.rank_in("pp")
        for path, module in self.module.named_modules():
            if self._assignment[path] == own_partition:
                yield path, module

    def local_modules(self) -> Iterator[nn.Module]:
        """Yield this rank's modules."""
        return (module for _, module in self.local_named_modules())

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters with their names, each once."""
        self._check_partitioned("local_named_parameters")
        return (
            (name, parameter) for name, parameter in self.module.named_parameters() if parameter.device.type != "meta"
        )

    # The name that AWS's scripts use for the parameters of a rank if the library divides parameters.
    virtual_named_parameters = local_named_parameters

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's buffers with their names."""
        self._check_partitioned("local_named_buffers")
        return ((name, buffer) for name, buffer in self.module.named_buffers() if buffer.device.type != "meta")

    def local_buffers(self) -> Iterator[Tensor]:
        """Yield this rank's buffers."""
        return (buffer for _, buffer in self.local_named_buffers())

    def local_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, marked as one (_smp_is_partial)."""
        self._check_partitioned("local_state_dict")
        return {**sharded.local_state(states.select_local(self.module.state_dict())), PARTIAL: True}

    def state_dict(  # type: ignore[override]
        self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the whole state, in the form of the wrapped module; all ranks call this together.

        *gather_to_rank0*: only the rank with partition 0 gets it, the others an empty dictionary.
        """
        self.place_additions()
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        if self._world.cfg.sharded_data_parallel_degree > 1:
            return sharded.whole_state(state)
        state = sharding.whole_state(self.module, state)
        if not self.partitioned or self._world.cfg.partitions == 1:
            return state
        gathered = states.gather(states.select_local(state), self._world, to_first=gather_to_rank0)
        if gathered is None:
            return {}
        return {name: gathered.get(name, value) for name, value in state.items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, same_partition_load: bool = False
    ) -> None:
        """Load a whole state, or this rank's part (of local_state_dict); before the partition, a part waits for it.

        *same_partition_load*: *state_dict* is this rank's part, whether marked or not.
        """
        self.place_additions()
        is_partial = same_partition_load or PARTIAL in state_dict
        holders = dict(self.module.named_parameters(remove_duplicate=False))
        state = {
            name: sharded.distribute_as(value, holders.get(name), name)
            for name, value in state_dict.items()
            if name != PARTIAL
        }
        if self.partitioned:
            self._load_local(state, strict, is_partial)
        elif is_partial or delayed.is_delayed(self.module):
            self._to_load = (state, strict, is_partial)
        else:
            self.module.load_state_dict(sharding.local_state(self.module, state), strict=strict)

    def _load_local(self, state: Mapping[str, Any], strict: bool, is_partial: bool) -> None:
        module_state: Any = self.module.state_dict()
        local = states.select_local(module_state)
        state = sharding.local_state(self.module, state)
        if strict:  # In a whole state all ranks find the same missing names.
            states.check(state, local if is_partial else module_state, module_state)
        loaded = OrderedDict((name, state[name]) for name in local if name in state)
        # Without the modules' versions BatchNorm adds what it misses, with a warning if it is on another rank.
        copy_versions(module_state, loaded)
        self.module.load_state_dict(loaded, strict=False)

    def join(self, *_: Any, **__: Any) -> Any:
        """Raise SMPError: replicas with unequal numbers of batches would not meet."""
        raise SMPError(
            "DistributedModel.join: expected as many batches on every replica, since all partitions take part in each "
            "step: use DistributedSampler(drop_last=True)"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> "DistributedModel":
        # For .to(), .half(), .cuda(). Parameters of other partitions have no data to convert.
        self.place_additions()
        for path, module in self.module.named_modules():
            if not self.partitioned or self._assignment[path] == self._world.rank_in("pp"):
                module._apply(fn, recurse=False)
        return self

    def _check_partitioned(self, method: str) -> None:
        if not self.partitioned:
            raise SMPError(
                f"expected DistributedModel.{method} after the model is partitioned, which its first step does, found "
                "a call before: use register_post_partition_hook"
            )
        self.place_additions()


def hvd_average_grads() -> None:
    """Average the gradients that the replicas have not averaged yet (smp.hvd_average_grads)."""
    model = get_runner().model
    if model is not None:
        model.replicas.flush()


def _identity(module: nn.Module) -> nn.Module:
    """Return *module*: a pickled DistributedModel is its module."""
    return module


def _includes_model(tensors: Any) -> bool:
    """Return whether parameters of the partitioned model, or their gradients, are among *tensors*."""
    model = state.model
    if model is None or not model.partitioned:
        return False
    ids = {id(parameter) for parameter in model.parameters()}
    ids |= {id(parameter.grad) for parameter in model.local_parameters() if parameter.grad is not None}
    return any(id(tensor) in ids for tensor in ([tensors] if isinstance(tensors, Tensor) else tensors))
