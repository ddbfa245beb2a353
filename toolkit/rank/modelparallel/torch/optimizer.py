"""smp.DistributedOptimizer: a torch optimizer over the parameters that this rank holds.

The script makes its optimizer over the whole model. A parameter's number is its place in that optimizer's groups, equal
on all ranks, so the merged state of all ranks is what plain PyTorch's load_state_dict takes. Once the model is
partitioned the groups keep the parameters of this rank: with shard_optimizer_state those of this replica's shard,
in fp16 and bf16 their fp32 masters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from toolkit.parallelism.parameters import Parameters
from toolkit.rank.modelparallel import objects, ranks, world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import api, sharded, shards
from toolkit.rank.modelparallel.torch.model import PARTIAL
from toolkit.rank.modelparallel.torch.scaling import LossScale, Masters, are_finite_everywhere
from toolkit.rank.modelparallel.torch.step import get_runner
from toolkit.rank.modelparallel.torch.tensor import sharding

# The parts of a state that fp16 and bf16 add.
LOW_PRECISION = ("masters", "loss_scale")


class DistributedOptimizer(torch.optim.Optimizer):
    """*optimizer* over this rank's part of the model; its other attributes remain.

    `static_loss_scale`, `dynamic_loss_scale` and `dynamic_loss_args` (scaling.LossScale) work in fp16; without it
    nothing overflows for want of a scale, and they have no effect.

    Raises:
        SMPError: no DistributedModel yet, an optimizer that no rank can run on its own part, or wrong arguments of loss
            scaling.
    """

    # transformers.Trainer asks both of every optimizer.
    _is_accelerate_prepared = True
    step_was_skipped = False
    # AWS's scripts read these: the same as step_was_skipped, and the norm that was clipped last.
    overflow = False
    _global_grad_norm: float | None = None
    redefined_params = False  # No parameter becomes another one when the optimizer's state is sharded.

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, Any] | None = None,
    ) -> None:
        # torch.optim.Optimizer.__init__ is not called: the wrapped optimizer holds groups, state and hooks.
        self.optimizer = optimizer
        self._world = world.current()
        self.model = _model()
        _check_separable(optimizer, self._world.cfg)
        self.loss_scale = _loss_scale(
            self._world.cfg, static_loss_scale, dynamic_loss_scale, dict(dynamic_loss_args or {})
        )
        # By group: the script's parameters; and the number of each, by its id.
        self._groups: list[list[nn.Parameter]] = []
        self._parameters: list[nn.Parameter] = []
        self._numbers: dict[int, int] = {}
        # This rank's parameters, and those of them that this rank updates.
        self._local: list[nn.Parameter] = []
        self._updated: list[nn.Parameter] = []
        self._is_local = False  # Whether the groups hold this rank's parameters alone.
        self._masters = Masters()
        self._shards: shards.Shards | None = None
        self._unscaled = False
        self._finite = True
        self._shards_parameters = self._world.cfg.sharded_data_parallel_degree > 1
        self._to_load: Mapping[str, Any] | None = None
        self._flat_groups: list[torch.Tensor] | None = None
        self.model.optimizer = api.state.optimizer = self
        self._record_groups()
        self.model.on_partition(self._adopt_partition)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not made yet: a copy or an unpickling asks
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @property
    def is_sharded(self) -> bool:
        """True if each replica holds the state of a part of the parameters (shard_optimizer_state)."""
        return self._shards is not None or self._shards_parameters

    @property
    def fp32_partitioned_groups_flat(self) -> list[torch.Tensor]:
        """By group: this rank's parts of its parameters as one vector, masters in fp16 and bf16, as the last step left
        them. AWS's scripts read them with sharded_data_parallel_degree."""
        if self._flat_groups is None:
            self._flat_groups = [
                torch.cat([torch.empty_like(part).flatten() for part in self._local_parts(group)])
                for group in self._groups
            ]
            self._fill_flat_groups()
        return self._flat_groups

    @property
    def fp16_groups(self) -> list[list[nn.Parameter]]:
        """By group: this rank's parameters of the model, of whatever type. AWS's scripts read their names and whole
        shapes (ds_shape) for a checkpoint with sharded_data_parallel_degree."""
        self._record_groups()
        return [[parameter for parameter in group if parameter.device.type != "meta"] for group in self._groups]

    @property
    def ds_param_shard_group(self) -> Any:
        """torch's process group of the ranks that share this rank's parameters (sharded_data_parallel_degree)."""
        return sharded.get_shard_group(self._parameters)

    def _local_parts(self, group: list[nn.Parameter]) -> list[torch.Tensor]:
        return [
            sharded.local_part(self._masters.of(parameter).detach())
            for parameter in group
            if parameter.device.type != "meta"
        ]

    def _fill_flat_groups(self) -> None:
        for flat, group in zip(self._flat_groups or (), self._groups, strict=False):
            torch.cat([part.flatten().to(flat.dtype) for part in self._local_parts(group)], out=flat)

    def numbers_by_name(self) -> dict[str, int]:
        """Return each parameter's number by its name in the model."""
        named_parameters = self.model.named_parameters()
        return {
            name: self._numbers[id(parameter)] for name, parameter in named_parameters if id(parameter) in self._numbers
        }

    def _param_id_to_index(self) -> dict[int, int]:
        """By id of each parameter that this rank updates (masters in fp16 and bf16): its number in the whole model."""
        return {id(self._masters.of(parameter)): self._numbers[id(parameter)] for parameter in self._updated}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters of the model; all ranks call it."""
        self.optimizer.add_param_group(param_group)
        self._record_groups()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of this rank's parameters."""
        self._record_groups()
        self.optimizer.zero_grad(set_to_none)
        for parameter in self._local or [parameter for group in self._groups for parameter in group]:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()
        self._unscaled = False

    def step(self, closure: Any = None) -> Any:
        """Update the parameters; without effect but for the loss scale if a gradient of any rank is not finite.

        Raises:
            SMPError: before the first step of the model, or a closure in fp16 or bf16.
        """
        self._require_partition("step")
        if closure is not None and self._masters.pairs:
            raise SMPError(
                "optimizer.step: expected no closure in fp16 and bf16, where the optimizer works on fp32 masters, "
                "found one: call the step function first, then optimizer.step()"
            )
        self.model.replicas.flush()
        if self._shards_parameters:
            self.clip_master_grads(self._world.cfg.sdp_gradient_clipping)
        self.step_was_skipped = self.overflow = not self._unscale()
        result = None
        if not self.step_was_skipped:
            result = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
            self._masters.give_weights()
            if self._shards:
                self._shards.share()
            self._fill_flat_groups()
        self.loss_scale.update(self.step_was_skipped)
        self.model.loss_scale = self.loss_scale.scale
        self._unscaled = False
        return result

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradients down to a norm of *max_norm* over the whole model, and return the norm before.

        Returns infinity, and clips nothing, where a gradient is not finite: `step` then skips.
        """
        self._require_partition("clip_master_grads")
        self.model.replicas.flush()
        if not self._unscale():
            self._global_grad_norm = float("inf")
            return self._global_grad_norm
        pairs = [(parameter, self._masters.of(parameter).grad) for parameter in self._updated]
        gradients = [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]
        norm = shards.compute_global_norm(gradients, float(norm_type), self._world, get_runner().device)
        self._global_grad_norm = norm
        factor = max_norm / (norm + 1e-6)
        if factor < 1:
            for _, gradient in gradients:
                gradient.mul_(factor)
        return norm

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Return the state of this rank's parameters, by number; with *gather_if_shard* those of all shards."""
        self._require_partition("local_state_dict")
        state = self._updated_state()
        if self._shards and gather_if_shard:
            state = merge(objects.allgather(state, objects.CommGroup.RDP_GROUP))
        return {**(sharded.whole_state(state) if gather_if_shard else sharded.local_state(state)), PARTIAL: True}

    def state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Return the state of the whole model on every rank: plain PyTorch's optimizer loads it.

        All ranks that hold the model call it together. Before the first step it is the wrapped optimizer's.
        """
        if not self.model.partitioned:
            return self.optimizer.state_dict()
        local = self._gather_whole(self.local_state_dict(gather_if_shard))
        parts = objects.allgather(local, objects.CommGroup.PP_GROUP)
        return merge(parts)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's part of *state_dict*, full or partial; before the first step, wait until that step.

        Raises:
            SMPError: other parameter groups, or a partial state without some parameters of this rank.
        """
        if not self.model.partitioned:
            self._to_load = state_dict
            return
        self._load(state_dict)

    def _adopt_partition(self, model: Any) -> None:
        self._record_groups()
        self._keep_local(self.optimizer.param_groups, self._groups)
        self._rekey_state({id(parameter) for parameter in self._updated})
        model.loss_scale = self.loss_scale.scale
        if self._to_load is not None:
            self._load(self._to_load)
            self._to_load = None

    def _record_groups(self) -> None:
        """Record the wrapped optimizer's groups, of which the script may have added some since the last call."""
        groups = self.optimizer.param_groups[len(self._groups) :]
        parameter_groups = [list(group["params"]) for group in groups]
        self._groups += parameter_groups
        for parameter in [parameter for group in parameter_groups for parameter in group]:
            self._numbers[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)
        if groups:
            self._flat_groups = None
        if groups and self.model.partitioned and self._is_local:
            self._keep_local(groups, parameter_groups)

    def _keep_local(self, groups: list[dict[str, Any]], parameter_groups: list[list[nn.Parameter]]) -> None:
        """Keep in *groups*, which had the parameters *parameter_groups*, the parameters that this rank updates."""
        self._is_local = True
        local_ids = {id(parameter) for parameter in self.model.local_parameters()}
        local = [parameter for group in parameter_groups for parameter in group if id(parameter) in local_ids]
        updated = local
        if self._world.cfg.shard_optimizer_state and ranks.rdp_size() > 1:
            self._shards = self._shards or shards.Shards(api.get_rdp_process_group())
            updated = self._shards.deal(local)
        self._local = [*self._local, *local]
        self._updated = [*self._updated, *updated]
        self._masters.add(updated)
        updated_ids = {id(parameter) for parameter in updated}
        for group, parameters in zip(groups, parameter_groups, strict=True):
            group["params"] = [self._masters.of(parameter) for parameter in parameters if id(parameter) in updated_ids]
            if self._shards_parameters and group.get("foreach", False) is None:
                group["foreach"] = False  # It refuses whole parameters beside spread ones.

    def _rekey_state(self, updated_ids: set[int]) -> None:
        """Keep the state that the optimizer made when it was constructed (Adagrad) for this rank's parameters."""
        for parameter in [parameter for group in self._groups for parameter in group]:
            if parameter not in self.optimizer.state:
                continue
            parameter_state = self.optimizer.state.pop(parameter)
            if id(parameter) in updated_ids:
                master = self._masters.of(parameter)
                self.optimizer.state[master] = {
                    name: value.to(master.dtype) if torch.is_tensor(value) and value.dtype == parameter.dtype else value
                    for name, value in parameter_state.items()
                }

    def _unscale(self) -> bool:
        """Give the masters unscaled gradients, once a step; return whether all gradients are finite."""
        if not self._unscaled and self._world.cfg.fp16:
            gradients = [parameter.grad for parameter in self._local if parameter.grad is not None]
            group = api.get_world_process_group() if self._shards_parameters else api.get_mp_process_group()
            self._finite = are_finite_everywhere(
                [sharded.local_part(gradient) for gradient in gradients], group, get_runner().device
            )
        if not self._unscaled:
            self._masters.take_gradients(1 / self.loss_scale.scale)
        self._unscaled = True
        return self._finite

    def _updated_numbers(self) -> list[list[int]]:
        updated_ids = {id(parameter) for parameter in self._updated}
        return [
            [self._numbers[id(parameter)] for parameter in group if id(parameter) in updated_ids]
            for group in self._groups
        ]

    def _updated_state(self) -> dict[str, Any]:
        numbers = self._updated_numbers()
        flat = [number for group in numbers for number in group]
        wrapped_state = self.optimizer.state_dict()
        state: dict[str, Any] = {
            "state": {flat[index]: value for index, value in wrapped_state["state"].items()},
            "param_groups": [
                {**group, "params": group_numbers}
                for group, group_numbers in zip(wrapped_state["param_groups"], numbers, strict=True)
            ],
        }
        if self._masters.pairs:
            state["masters"] = {
                self._numbers[id(parameter)]: master.detach() for parameter, master in self._masters.pairs
            }
            state["loss_scale"] = self.loss_scale.state_dict()
        return state

    def _gather_whole(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return *state* with whole tensors of divided parameters."""
        flat = self._parameters
        sorted_states = sorted(state["state"].items())
        state["state"] = {
            number: sharding.whole_optimizer_state(parameter_state, flat[number])
            for number, parameter_state in sorted_states
        }
        if "masters" in state:
            masters = sorted(state["masters"].items())
            state["masters"] = {number: sharding.gather_to_whole(master, flat[number]) for number, master in masters}
        return state

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's part of *state_dict*, which may be the LOW_PRECISION parts of a state alone."""
        if "param_groups" in state_dict:
            self._load_state(state_dict)
        masters = state_dict.get("masters", {})
        for parameter, _ in self._masters.pairs:
            if (number := self._numbers[id(parameter)]) in masters:
                part = sharding.slice_to_fit(masters[number], parameter)
                self._masters.load(parameter, sharded.distribute_as(part, parameter, f"master {number}"))
        if self._shards and masters:
            self._shards.share()
        if "loss_scale" in state_dict:
            self.loss_scale.load_state_dict(state_dict["loss_scale"])
            self.model.loss_scale = self.loss_scale.scale

    def _load_state(self, state_dict: Mapping[str, Any]) -> None:
        groups, numbers = state_dict["param_groups"], self._updated_numbers()
        if len(groups) != len(numbers):
            raise _mismatch(f"{len(numbers)} parameter groups", str(len(groups)))
        for index, (group, group_numbers) in enumerate(zip(groups, numbers, strict=True)):
            if missing := sorted(set(group_numbers) - set(group["params"])):
                raise _mismatch(f"parameters {missing} in group {index}", f"{len(group['params'])} others")
        index_of = {number: index for index, number in enumerate(number for group in numbers for number in group)}
        self.optimizer.load_state_dict(
            {
                "state": {
                    index_of[number]: self._fitting(number, value)
                    for number, value in state_dict["state"].items()
                    if number in index_of
                },
                "param_groups": [
                    {**group, "params": [index_of[number] for number in group_numbers]}
                    for group, group_numbers in zip(groups, numbers, strict=True)
                ],
            }
        )

    def _fitting(self, number: int, state: Mapping[str, Any]) -> dict[str, Any]:
        parameter = self._parameters[number]
        local_state = {name: sharding.slice_to_fit(value, parameter) for name, value in state.items()}
        return {
            name: sharded.distribute_as(value, parameter, f"{name} of {number}") for name, value in local_state.items()
        }

    def _require_partition(self, name: str) -> None:
        if not self.model.partitioned:
            raise SMPError(
                f"optimizer.{name}: expected a partitioned model, found one before its first step: call a function "
                "with @smp.step first"
            )
        self._record_groups()


def _loss_scale(cfg: Parameters, static: float | None, dynamic: bool, dynamic_args: dict[str, Any]) -> LossScale:
    loss_scale = LossScale(static, dynamic, dynamic_args)
    if not cfg.fp16 and (dynamic or loss_scale.scale != 1):
        world.say("static_loss_scale and dynamic_loss_scale have no effect without fp16 (smp.DistributedOptimizer)")
        return LossScale(1.0)
    return loss_scale


def merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one state of the *parts* of several ranks; their groups are equal but for the parameters in them."""
    merged: dict[str, Any] = {name: value for name, value in parts[0].items() if name != PARTIAL}
    for name in ("state", "masters"):
        if any(name in part for part in parts):
            merged[name] = dict(sorted((n, v) for part in parts for n, v in part.get(name, {}).items()))
    if "param_groups" in merged:
        merged["param_groups"] = [
            {**group, "params": sorted({number for part in parts for number in part["param_groups"][index]["params"]})}
            for index, group in enumerate(merged["param_groups"])
        ]
    return merged


def _model() -> Any:
    model = get_runner().model
    if model is None:
        raise SMPError(
            "smp.DistributedOptimizer: expected a DistributedModel before the optimizer, found none: wrap the model "
            "first, model = smp.DistributedModel(model)"
        )
    return model


def _mismatch(expected: str, actual: str) -> SMPError:
    return SMPError(
        f"optimizer.load_state_dict: expected {expected}, found {actual}: make the optimizer over the same parameters "
        "in the same order as in the job that saved this state, and give the full state or the parts of all partitions "
        "(smp.resume_from_checkpoint does)"
    )


def _check_separable(optimizer: torch.optim.Optimizer, cfg: Parameters) -> None:
    """Check that *optimizer* can update some parameters without the others.

    Raises:
        SMPError: it is LBFGS, and no rank has all parameters.
    """
    is_divided = cfg.partitions > 1 or cfg.tensor_parallel_degree > 1 or cfg.sharded_data_parallel_degree > 1
    if isinstance(optimizer, torch.optim.LBFGS) and (is_divided or cfg.shard_optimizer_state):
        raise SMPError(
            "smp.DistributedOptimizer: expected an optimizer that updates each parameter by itself, found LBFGS, whose "
            "direction and step length depend on all parameters, of which each rank has a part: use another one, or "
            "partitions 1 without tensor parallelism and sharding"
        )
