"""Averages gradients over ranks, in buckets.

A step runs several microbatches, so a gradient is final only after the last one. The averager counts how often each
parameter receives a gradient in a step. From the second step on it starts the all-reduce of a bucket as soon as its
parameters have received that many (overlapping_allreduce). A step in which one of them receives more makes the bucket
dirty: it is reduced again at the end of the step, on all ranks.

Every rank of a group starts the same reductions in the same order: the buckets by number, then the flags, then the
dirty buckets by number.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.utils.hooks import RemovableHandle

MIB = 1 << 20
# A communication hook as torch.nn.parallel.DistributedDataParallel.register_comm_hook takes it: it gets its state and a
# GradientBucket, and returns a future of the averaged buffer.
CommHook = Callable[[Any, Any], "Future[Any]"]


class GradientBucket:
    """Gradients that are reduced together; the methods are those of torch.distributed.GradBucket."""

    def __init__(self, number: int, parameters: Sequence[nn.Parameter]) -> None:
        self._number, self._parameters = number, list(parameters)
        self.last = False
        self.flat: torch.Tensor | None = None
        self.work: Any = None
        self.dirty = False
        # Parameters that received their last expected gradient in this step.
        self.ready = 0

    def index(self) -> int:
        """Return the bucket's number, from 0, in the order of reduction."""
        return self._number

    def buffer(self) -> torch.Tensor:
        """Return the gradients as one vector."""
        assert self.flat is not None
        return self.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Replace the vector of gradients."""
        self.flat = tensor

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients the bucket holds."""
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients as views of the vector, shaped as their parameters."""
        views, begin = [], 0
        for parameter in self._parameters:
            views.append(self.buffer()[begin : begin + parameter.numel()].view(parameter.shape))
            begin += parameter.numel()
        return views

    def is_last(self) -> bool:
        """Return whether this is the step's last bucket."""
        return self.last

    def fill(self, keep: bool) -> None:
        """Copy the gradients into the vector, of zeros where there is none; *keep* the vector of the last step."""
        first = self._parameters[0]
        if self.flat is None or not keep:
            size = sum(parameter.numel() for parameter in self._parameters)
            self.flat = torch.empty(size, dtype=get_gradient_dtype(first), device=first.device)
        for parameter, view in zip(self._parameters, self.gradients(), strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)


class Averager:
    """Averages the gradients of *parameters* over the ranks of *group*.

    `bucket_cap_mb`: MiB of gradients in one all-reduce, at most (a larger parameter is a bucket of its own).
    `as_bucket_view`: gradients become views of the buckets, which saves a copy of all gradients.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: Any,
        *,
        overlapping: bool = True,
        bucket_cap_mb: float = 25,
        as_bucket_view: bool = False,
    ) -> None:
        self._group, self._size = group, dist.get_world_size(group)
        self._view, self._overlapping = as_bucket_view, overlapping
        self._cap_bytes = bucket_cap_mb * MIB
        self.parameters: list[nn.Parameter] = []
        self.buckets: list[GradientBucket] = []
        self._bucket_of: dict[int, GradientBucket] = {}
        self._received: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._launched = 0
        self._armed = True
        self._comm_hook: tuple[CommHook, Any] | None = None
        self._handles: list[RemovableHandle] = []
        # Buckets whose all-reduce began before the step ended, in the last step.
        self.overlapped = 0
        self.add(parameters)

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average also those of *parameters* that need a gradient, in buckets after the present ones."""
        new = [parameter for parameter in parameters if parameter.requires_grad]
        self.parameters += new
        # The last layers' gradients are final first.
        buckets = _buckets(list(reversed(new)), self._cap_bytes, after=self.buckets)
        self.buckets += buckets
        self._bucket_of |= {id(parameter): bucket for bucket in buckets for parameter in bucket.parameters()}
        if self._overlapping:
            self._handles += [_after_gradient(parameter, self._receive) for parameter in new]

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Let *hook* average each bucket instead of an all-reduce."""
        self._comm_hook = (hook, state)

    def hold(self, next_is_last: bool) -> None:
        """End a step without averaging; *next_is_last*: the next one averages, so its reductions may start early."""
        self._received, self._armed = {}, next_is_last

    def finish(self, next_is_last: bool = True) -> None:
        """End a step: average the gradients, on every rank of the group. A gradient that no rank has stays None."""
        self.overlapped = self._launched
        for bucket in self.buckets[self._launched :]:
            self._launch(bucket)
        self._await(self.buckets)
        has = self._flags()
        for bucket in self.buckets:
            self._hand_back(bucket, has)
        self._expected, self._received, self._launched = self._received, {}, 0
        self._armed = next_is_last

    def close(self) -> None:
        """Stop counting gradients."""
        for handle in self._handles:
            handle.remove()

    def _receive(self, parameter: nn.Parameter) -> None:
        number = id(parameter)
        count = self._received[number] = self._received.get(number, 0) + 1
        bucket = self._bucket_of[number]
        if bucket.work is not None:
            bucket.dirty = True
        if not self._armed or not self._expected or count != self._expected.get(number):
            return
        bucket.ready += 1
        while self._launched < len(self.buckets):
            following = self.buckets[self._launched]
            if following.ready < sum(id(parameter) in self._expected for parameter in following.parameters()):
                return
            self._launch(following)
            self._launched += 1

    def _launch(self, bucket: GradientBucket) -> None:
        bucket.fill(self._view and not self._overlapping)
        if self._comm_hook is not None:
            hook, state = self._comm_hook
            bucket.work = hook(state, bucket)
            return
        # Divided before the sum, so that fp16 does not overflow.
        bucket.buffer().div_(self._size)
        bucket.work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)

    def _await(self, buckets: Sequence[GradientBucket]) -> None:
        for bucket in buckets:
            averaged = bucket.work.wait()
            if self._comm_hook is not None:
                bucket.set_buffer(averaged[0] if isinstance(averaged, list | tuple) else averaged)
            bucket.work, bucket.ready = None, 0

    def _flags(self) -> list[bool]:
        """Reduce dirty buckets again; return for each parameter whether any rank has a gradient."""
        dirty = [bucket.dirty for bucket in self.buckets]
        has = [parameter.grad is not None for parameter in self.parameters]
        device = self.parameters[0].device if self.parameters else None
        flags = torch.tensor(dirty + has, dtype=torch.uint8, device=device)
        if len(flags):
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        everywhere = flags.bool().tolist()
        again = [bucket for bucket, needed in zip(self.buckets, everywhere, strict=False) if needed]
        for bucket in again:
            bucket.dirty = False
            self._launch(bucket)
        self._await(again)
        return everywhere[len(self.buckets) :]

    def _hand_back(self, bucket: GradientBucket, has: list[bool]) -> None:
        held = {id(parameter) for parameter, has_gradient in zip(self.parameters, has, strict=True) if has_gradient}
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if id(parameter) not in held:
                continue
            if self._view or parameter.grad is None:
                parameter.grad = view if self._view else view.clone()
            else:
                parameter.grad.copy_(view)
        if not self._view:
            bucket.flat = None


def _after_gradient(parameter: Any, call: Callable[[nn.Parameter], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(call)
    return handle


def get_gradient_dtype(parameter: Any) -> torch.dtype:
    """Return the type of *parameter*'s gradient: its own, or that in which autograd was told to add it up."""
    dtype: torch.dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return dtype


def _buckets(
    parameters: Sequence[nn.Parameter], cap_bytes: float, after: Sequence[GradientBucket]
) -> list[GradientBucket]:
    """Return the buckets of *parameters*, which come *after* others."""
    groups: list[list[nn.Parameter]] = []
    filled: dict[Any, tuple[list[nn.Parameter], float]] = {}
    for parameter in parameters:
        kind = (get_gradient_dtype(parameter), parameter.device)
        size = parameter.numel() * parameter.element_size()
        members, used = filled.get(kind, ([], cap_bytes))
        if used + size > cap_bytes:
            members, used = [], 0
            groups.append(members)
        members.append(parameter)
        filled[kind] = (members, used + size)
    buckets = [GradientBucket(number, members) for number, members in enumerate(groups, len(after))]
    if buckets:
        for bucket in (*after, *buckets):
            bucket.last = bucket is buckets[-1]
    return buckets
