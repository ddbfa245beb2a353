"""Training in fp16 or bf16: the loss scale, fp32 master weights, and a GradScaler that all ranks agree on.

The names of dynamic_loss_args and their defaults are those of smp.DistributedOptimizer (API reference of SageMaker's
model parallel library, release 1.15).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from toolkit.errors import did_you_mean
from toolkit.parallelism.parameters import Parameters
from toolkit.rank.frameworks.torch.tensors import get_version, init_scale, pytree
from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import api

DYNAMIC_DEFAULTS: dict[str, Any] = {
    "init_scale": 2.0**32,
    "scale_factor": 2.0,
    "scale_window": 1000,
    "min_scale": 1,
    "delayed_shift": 1,
    "consecutive_hysteresis": False,
}
WHERE = "smp.DistributedOptimizer"


def get_working_dtype(cfg: Parameters) -> torch.dtype | None:
    """Return the type in which the model works, None: as it is."""
    return torch.float16 if cfg.fp16 else torch.bfloat16 if cfg.bf16 else None


def accumulate_in_fp32(parameters: Iterable[nn.Parameter]) -> None:
    """Let autograd add up the gradients of those of *parameters* that are fp16 or bf16 in fp32.

    Raises:
        SMPError: this release of torch cannot.
    """
    for parameter in parameters:
        if _is_low(parameter):
            if not hasattr(parameter, "grad_dtype"):
                raise SMPError(
                    "_fp32_grad_accumulation: expected a torch whose parameters have grad_dtype (2.10 or later), found "
                    f"torch {torch.__version__}: remove the parameter, or install a later torch"
                )
            parameter.grad_dtype = torch.float32


def to_working_dtype(values: Any, cfg: Parameters) -> Any:
    """Return *values*, which the model gets, with fp32 tensors in the type in which it works."""
    dtype = get_working_dtype(cfg)
    return values if dtype is None else _cast(values, torch.float32, dtype)


def to_fp32(values: Any, cfg: Parameters) -> Any:
    """Return *values*, which the model gives, with tensors of its type as fp32: so is the loss."""
    dtype = get_working_dtype(cfg)
    return values if dtype is None else _cast(values, dtype, torch.float32)


class LossScale:
    """The factor of the loss before the backward pass; a dynamic one follows the overflows.

    After an overflow the scale is divided by scale_factor, once `delayed_shift` overflows have been counted. After
    `scale_window` steps without one it is multiplied by it, and the count starts again; with consecutive_hysteresis
    the count starts again at every step without an overflow. A static one has no use for *dynamic_args*.

    Raises:
        SMPError: an unknown name in dynamic_loss_args, or a value out of range.
    """

    def __init__(
        self, static: float | None = 1.0, dynamic: bool = False, dynamic_args: Mapping[str, Any] | None = None
    ) -> None:
        self._dynamic = dynamic
        self._args = _arguments(dynamic_args or {})
        self.scale = float(self._args["init_scale"] if dynamic else static or 1.0)
        if not self.scale > 0 or math.isinf(self.scale):
            raise _wrong("a loss scale above 0", self.scale)
        self._overflows_left = self._args["delayed_shift"]
        self._good_steps = 0

    def update(self, overflow: bool) -> None:
        """Set the scale of the next step; *overflow*: this step's gradients were not finite."""
        if not self._dynamic:
            return
        shift, factor = self._args["delayed_shift"], self._args["scale_factor"]
        if overflow:
            self._good_steps = 0
            if self._overflows_left > 1:
                self._overflows_left -= 1
            else:
                self.scale = max(self.scale / factor, float(self._args["min_scale"]))
            return
        self._good_steps += 1
        if self._args["consecutive_hysteresis"]:
            self._overflows_left = shift
        if self._good_steps % self._args["scale_window"] == 0:
            self._overflows_left = shift
            self.scale *= factor

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed job needs."""
        return {"scale": self.scale, "overflows_left": self._overflows_left, "good_steps": self._good_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from *state*; a static scale stays as the script gave it."""
        if self._dynamic:
            self.scale = state["scale"]
            self._overflows_left, self._good_steps = state["overflows_left"], state["good_steps"]


class Masters:
    """fp32 copies of parameters of a lower precision; the optimizer works on the copies.

    A parameter that something else changes (load_state_dict) is seen by its version, and copied again.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._others: list[nn.Parameter] = []
        self._of: dict[int, nn.Parameter] = {}
        self._versions: list[int] = []

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make masters of those of *parameters* that have a lower precision."""
        for parameter in parameters:
            if _is_low(parameter):
                master = self._of[id(parameter)] = nn.Parameter(parameter.detach().float())
                self.pairs.append((parameter, master))
                self._versions.append(get_version(parameter))
            else:
                self._others.append(parameter)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the master of *parameter*, itself if it is fp32."""
        return self._of.get(id(parameter), parameter)

    @torch.no_grad()
    def take_gradients(self, factor: float) -> None:
        """Multiply the gradients by *factor*, and give the masters theirs as fp32; refresh changed masters."""
        for number, (parameter, master) in enumerate(self.pairs):
            if get_version(parameter) != self._versions[number]:
                master.copy_(parameter)
                self._versions[number] = get_version(parameter)
            gradient = parameter.grad
            if gradient is None:
                master.grad = None
            else:  # A gradient that is fp32 already (accumulate_in_fp32) stays as it is: the next backward adds to it.
                master.grad = gradient * factor if gradient.dtype == torch.float32 else gradient.float().mul_(factor)
        for parameter in self._others:
            if parameter.grad is not None and factor != 1:
                parameter.grad.mul_(factor)

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the masters into their parameters."""
        for number, (parameter, master) in enumerate(self.pairs):
            parameter.copy_(master)
            master.grad = None
            self._versions[number] = get_version(parameter)

    @torch.no_grad()
    def load(self, parameter: nn.Parameter, master: torch.Tensor) -> None:
        """Set *parameter*'s master to *master*, and the parameter to its rounding."""
        self.of(parameter).copy_(master)
        parameter.copy_(master)
        for number, (candidate, _) in enumerate(self.pairs):
            if candidate is parameter:
                self._versions[number] = get_version(parameter)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for a partitioned model: all ranks skip a step, or none does (smp.amp.GradScaler).

    The model's part on one rank may overflow while the others' do not, and only the rank that runs the step function
    has called `scale`.
    """

    def __init__(self, **options: Any) -> None:
        self._on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(self._on.type, **options)

    def _unscale_grads_(self, *arguments: Any, **options: Any) -> dict[torch.device, torch.Tensor]:
        overflows = super()._unscale_grads_(*arguments, **options)
        overflow = torch.zeros(1, device=self._on)
        for device_overflow in overflows.values():
            overflow += device_overflow.to(self._on)
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX, group=api.get_mp_process_group())
        return {self._on: overflow}

    def unscale_(self, optimizer: Any) -> None:
        """Divide *optimizer*'s gradients by the scale."""
        self._begin()
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        """Step *optimizer*, unless a gradient of any rank is not finite."""
        self._begin()
        return super().step(optimizer, *arguments, **options)

    def update(self, new_scale: Any = None) -> None:
        """Set the scale of the next step, equal on all ranks."""
        self._begin()
        super().update(new_scale)

    def _begin(self) -> None:
        init_scale(self, self._on)


def are_finite_everywhere(gradients: Iterable[torch.Tensor], group: Any, device: torch.device) -> bool:
    """Return whether every value of *gradients* is finite, on all ranks of *group*."""
    norms = [gradient.detach().float().abs().max() for gradient in gradients if gradient.numel()]
    bad = torch.zeros(1, device=device) if not norms else (~torch.isfinite(torch.stack(norms))).any().float().view(1)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=group)
    return not bool(bad.item())


def _cast(values: Any, old: torch.dtype, new: torch.dtype) -> Any:
    return pytree.tree_map(
        lambda value: value.to(new) if torch.is_tensor(value) and value.dtype == old else value, values
    )


def _arguments(changed: Mapping[str, Any]) -> dict[str, Any]:
    for name in changed:
        if name not in DYNAMIC_DEFAULTS:
            hint = did_you_mean(name, DYNAMIC_DEFAULTS) or "Known: " + ", ".join(DYNAMIC_DEFAULTS) + "."
            raise SMPError(f"{WHERE}: expected an argument of dynamic loss scaling, found {name!r}. {hint}")
    arguments = {**DYNAMIC_DEFAULTS, **changed}
    for name, least in (("scale_window", 1), ("delayed_shift", 1), ("scale_factor", 1)):
        if arguments[name] < least:
            raise _wrong(f"{least} or more for {name}", arguments[name])
    return arguments


def _wrong(expected: str, actual: object) -> SMPError:
    return SMPError(f"{WHERE}: expected {expected}, found {actual!r}: correct the argument")


def _is_low(parameter: torch.Tensor) -> bool:
    return parameter.dtype in (torch.float16, torch.bfloat16)
