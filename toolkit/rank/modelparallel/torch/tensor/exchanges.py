"""What tensor parallel ranks exchange at the borders of distributed modules, as autograd functions.

Two ways. By default each rank has samples of its own: a distributed module works on the samples of all ranks of the
group (axis 0: rows) with the features (last axis) that it has. With prescaled_batch all ranks have the same samples.

The loss of the job is the mean over the data parallel ranks, each of which runs the backward pass of its own loss. With
samples of their own, gradients are of the sum of the group's losses; at the border they are divided by its size, so
that inside they are of the mean, and at the other border multiplied again.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.rank.modelparallel import world
from toolkit.rank.modelparallel.torch.tensor.sharding import exchange, group, own, sizes


def spread_in(x: Tensor) -> Tensor:
    """Return the rows of all ranks, all features: for a layer that makes features of its own of them."""
    return _through(x, _GatherRows, _SumGradients)


def split_in(x: Tensor) -> Tensor:
    """Return the rows of all ranks, this rank's features."""
    return _through(x, _ToFeatures, _OwnFeatures)


def join_out(y: Tensor, features: int) -> Tensor:
    """Return this rank's rows with all *features*, of all rows with the features of this rank."""
    return _through(y, _ToRows, _AllFeatures, features)


def sum_out(y: Tensor) -> Tensor:
    """Return this rank's rows of the sum of all ranks' *y*."""
    return _through(y, _SumRows, _Sum)


def rows_of_all(x: Tensor) -> Tensor:
    """Return the rows of all ranks; without a gradient."""
    return x if group().size == 1 or world.current().cfg.prescaled_batch else torch.cat(_gather(x))


def _through(x: Tensor, scaled: Any, prescaled: Any, *more: Any) -> Tensor:
    if group().size == 1:
        return x
    found: Tensor = (prescaled if world.current().cfg.prescaled_batch else scaled).apply(x, *more)
    return found


def _gather(x: Tensor) -> list[Tensor]:
    its = group()
    found = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(its.size)]
    dist.all_gather(found, x.contiguous(), group=its.process_group)
    return found


def _sum(x: Tensor) -> Tensor:
    found = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=group().process_group)
    return found


def _sum_rows(x: Tensor) -> Tensor:
    parts = x.chunk(group().size)
    total, *others = exchange(parts, [parts[0].shape] * len(parts))
    for each in others:
        total += each
    return total


def _to_features(x: Tensor) -> Tensor:
    its = group()
    runs = sizes(x.shape[-1], its.size)
    shape = (*x.shape[:-1], runs[its.rank])
    return torch.cat(exchange(torch.split(x, runs, -1), [shape] * its.size))


def _to_rows(y: Tensor, features: int) -> Tensor:
    its = group()
    parts = y.chunk(its.size)
    shapes = [(*parts[0].shape[:-1], run) for run in sizes(features, its.size)]
    return torch.cat(exchange(parts, shapes), -1)


def _all_features(y: Tensor, features: int) -> Tensor:
    runs = sizes(features, group().size)
    return torch.cat(exchange([y] * len(runs), [(*y.shape[:-1], run) for run in runs]), -1)


class _Pair(torch.autograd.Function):
    """`there` of the value, `back` of the gradient."""

    there: Callable[..., Tensor]
    back: Callable[..., Tensor]

    @classmethod
    def forward(cls, ctx: Any, x: Tensor, *more: Any) -> Tensor:
        ctx.features = x.shape[-1] if x.dim() else 0
        ctx.size = group().size
        return cls.there(x, *more)

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Any:
        return cls.back(gradient, ctx), *([None] * (len(ctx.needs_input_grad) - 1))


class _GatherRows(_Pair):
    there = staticmethod(lambda x: torch.cat(_gather(x)))
    back = staticmethod(lambda g, ctx: _sum_rows(g) * ctx.size)


class _ToFeatures(_Pair):
    there = staticmethod(_to_features)
    back = staticmethod(lambda g, ctx: _to_rows(g, ctx.features) * ctx.size)


class _ToRows(_Pair):
    there = staticmethod(_to_rows)
    back = staticmethod(lambda g, ctx: _to_features(g) / ctx.size)


class _SumRows(_Pair):
    there = staticmethod(_sum_rows)
    back = staticmethod(lambda g, ctx: torch.cat(_gather(g)) / ctx.size)


class _SumGradients(_Pair):
    there = staticmethod(lambda x: x.view_as(x))
    back = staticmethod(lambda g, _: _sum(g))


class _OwnFeatures(_Pair):
    there = staticmethod(lambda x: own(x, -1).contiguous())
    back = staticmethod(lambda g, ctx: _all_features(g, ctx.features))


class _AllFeatures(_Pair):
    there = staticmethod(_all_features)
    back = staticmethod(lambda g, _: own(g, -1).contiguous())


class _Sum(_Pair):
    there = staticmethod(_sum)
    back = staticmethod(lambda g, _: g)
