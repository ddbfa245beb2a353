"""smp.optimizers: LAMB and NovoGrad as AWS's library has them, in PyTorch's own operations.

LAMB: https://arxiv.org/abs/1904.00962, NovoGrad: https://arxiv.org/abs/1905.11286. The arguments, their defaults and
where a norm is clipped or corrected are those of NVIDIA's Apex (apex.optimizers.FusedLAMB, FusedNovoGrad; release 0.1).
Both look at whole parameters, and LAMB at the norm of the whole model's gradients.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import shards
from toolkit.rank.modelparallel.torch.step import get_runner


class _WholeParameters(torch.optim.Optimizer):
    """The base of both optimizers: a step updates each parameter that has a gradient."""

    def _begin(self) -> None:
        """Read all gradients before the first parameter changes; all ranks call it."""

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any], state: Any) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, all ranks together.

        Raises:
            SMPError: parameters are divided among ranks (tensor or sharded data parallelism).
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_parts()
        self._begin()
        for group, parameter, gradient in self._gradients():
            self._update(parameter, gradient, group, self.state[parameter])
        return loss

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients, as `set_grad_none` said when the optimizer was made."""
        super().zero_grad(self.defaults["set_grad_none"] if set_to_none is None else set_to_none)

    def _gradients(self) -> Iterator[tuple[dict[str, Any], nn.Parameter, Tensor]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield group, parameter, parameter.grad

    def _refuse_parts(self) -> None:
        cfg = world.current().cfg if world.is_begun() else None
        if cfg is not None and max(cfg.tensor_parallel_degree, cfg.sharded_data_parallel_degree) > 1:
            raise SMPError(
                f"smp.optimizers.{type(self).__name__}: expected whole parameters, whose norms it takes, found "
                "tensor_parallel_degree or sharded_data_parallel_degree above 1: use partitions, with "
                "shard_optimizer_state if its state is too large, or another optimizer"
            )


class FusedLAMB(_WholeParameters):
    """LAMB; arguments as apex.optimizers.FusedLAMB has them.

    Raises:
        SMPError: amsgrad.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        _refuse_amsgrad(self, amsgrad)
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        defaults |= {"weight_decay": weight_decay, "adam_w_mode": adam_w_mode, "grad_averaging": grad_averaging}
        defaults |= {"set_grad_none": set_grad_none, "max_grad_norm": max_grad_norm, "use_nvlamb": use_nvlamb}
        super().__init__(params, defaults)
        self._norm = 0.0

    def _begin(self) -> None:
        pairs = [(parameter, gradient) for _, parameter, gradient in self._gradients()]
        self._norm = _norm_of_all(pairs)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any], state: Any) -> None:
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=_zeros(parameter), exp_avg_sq=_zeros(parameter))
        state["step"] += 1
        step, (beta1, beta2), decay = int(state["step"]), group["betas"], group["weight_decay"]
        most = group["max_grad_norm"]
        gradient = gradient / (self._norm / most) if most and self._norm > most else gradient
        if not group["adam_w_mode"]:
            gradient = gradient + decay * parameter
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.mul_(beta1).add_(gradient, alpha=1 - beta1 if group["grad_averaging"] else 1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrects = group["bias_correction"]
        first = first / (1 - beta1**step if corrects else 1)
        second = second / (1 - beta2**step if corrects else 1)
        update = first / (second.sqrt() + group["eps"])
        if group["adam_w_mode"]:
            update = update + decay * parameter
        trust = 1.0
        if group["use_nvlamb"] or decay:
            weight, change = float(parameter.norm()), float(update.norm())
            trust = weight / change if weight and change else 1.0
        parameter.sub_(update, alpha=group["lr"] * trust)


class FusedNovoGrad(_WholeParameters):
    """NovoGrad; arguments as apex.optimizers.FusedNovoGrad has them. *norm_type*: 2, or 0 for the largest element.

    Raises:
        SMPError: amsgrad, or another norm.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        _refuse_amsgrad(self, amsgrad)
        if norm_type not in (0, 2):
            raise SMPError(f"smp.optimizers.FusedNovoGrad: expected norm_type 0 or 2, found {norm_type!r}")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        defaults |= {"weight_decay": weight_decay, "grad_averaging": grad_averaging, "norm_type": norm_type}
        defaults |= {"reg_inside_moment": reg_inside_moment, "init_zero": init_zero, "set_grad_none": set_grad_none}
        super().__init__(params, defaults)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any], state: Any) -> None:
        norm = torch.linalg.vector_norm(gradient, 2 if group["norm_type"] == 2 else float("inf"))
        if not state:
            begin = torch.zeros_like(norm) if group["init_zero"] else norm.clone()
            state.update(step=torch.tensor(0.0), exp_avg=_zeros(parameter), norm=begin)
        state["step"] += 1
        step, (beta1, beta2), decay = int(state["step"]), group["betas"], group["weight_decay"]
        if group["norm_type"] == 2:
            state["norm"] = (beta2 * state["norm"] ** 2 + (1 - beta2) * norm**2).sqrt()
        else:
            state["norm"] = beta2 * state["norm"] + (1 - beta2) * norm
        corrects = group["bias_correction"]
        bottom = state["norm"] / ((1 - beta2**step) ** 0.5 if corrects else 1) + group["eps"]
        moment, share = state["exp_avg"].mul_(beta1), 1 - beta1 if group["grad_averaging"] else 1
        correction = 1 - beta1**step if corrects else 1
        if group["reg_inside_moment"]:
            moment.add_(gradient / bottom + decay * parameter, alpha=share)
            update = moment / correction
        else:
            moment.add_(gradient, alpha=share)
            update = moment / correction / bottom + decay * parameter
        parameter.sub_(update, alpha=group["lr"])


# The name in AWS's reference.
FusedLamb = FusedLAMB


def _norm_of_all(pairs: Iterable[tuple[nn.Parameter, Tensor]]) -> float:
    """Return the norm of the gradients of the whole model, which may lie on several ranks."""
    pairs = list(pairs)
    if world.is_begun():
        return shards.compute_global_norm(pairs, 2.0, world.current(), get_runner().device)
    return float(sum(float(gradient.float().norm()) ** 2 for _, gradient in pairs) ** 0.5)


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


def _refuse_amsgrad(optimizer: object, amsgrad: bool) -> None:
    if amsgrad:
        raise SMPError(f"smp.optimizers.{type(optimizer).__name__}: expected amsgrad=False, which it does not have")
