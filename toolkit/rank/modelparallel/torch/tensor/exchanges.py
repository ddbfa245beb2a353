"""Exchanges of tensor parallel ranks at the borders of distributed modules, as autograd functions.

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
from toolkit.rank.modelparallel.torch.tensor.sharding import exchange_parts, get_group, slice_local, split_sizes


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
    return x if get_group().size == 1 or world.current().cfg.prescaled_batch else torch.cat(_gather(x))


def _through(x: Tensor, scaled: Any, prescaled: Any, *more: Any) -> Tensor:
    if get_group().size == 1:
        return x
    output: Tensor = (prescaled if world.current().cfg.prescaled_batch else scaled).apply(x, *more)
    return output


def _gather(x: Tensor) -> list[Tensor]:
    group = get_group()
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
    dist.all_gather(parts, x.contiguous(), group=group.process_group)
    return parts


def _sum(x: Tensor) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=get_group().process_group)
    return total


def _sum_rows(x: Tensor) -> Tensor:
    parts = x.chunk(get_group().size)
    total, *others = exchange_parts(parts, [parts[0].shape] * len(parts))
    for part in others:
        total += part
    return total


def _to_features(x: Tensor) -> Tensor:
    group = get_group()
    runs = split_sizes(x.shape[-1], group.size)
    shape = (*x.shape[:-1], runs[group.rank])
    return torch.cat(exchange_parts(torch.split(x, runs, -1), [shape] * group.size))


def _to_rows(y: Tensor, features: int) -> Tensor:
    group = get_group()
    parts = y.chunk(group.size)
    shapes = [(*parts[0].shape[:-1], run) for run in split_sizes(features, group.size)]
    return torch.cat(exchange_parts(parts, shapes), -1)


def _all_features(y: Tensor, features: int) -> Tensor:
    runs = split_sizes(features, get_group().size)
    return torch.cat(exchange_parts([y] * len(runs), [(*y.shape[:-1], run) for run in runs]), -1)


class _Pair(torch.autograd.Function):
    """`exchange` of the value, `exchange_back` of the gradient."""

    exchange: Callable[..., Tensor]
    exchange_back: Callable[..., Tensor]

    @classmethod
    def forward(cls, ctx: Any, x: Tensor, *more: Any) -> Tensor:
        ctx.features = x.shape[-1] if x.dim() else 0
        ctx.size = get_group().size
        return cls.exchange(x, *more)

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Any:
        return cls.exchange_back(gradient, ctx), *([None] * (len(ctx.needs_input_grad) - 1))


class _GatherRows(_Pair):
    exchange = staticmethod(lambda x: torch.cat(_gather(x)))
    exchange_back = staticmethod(lambda g, ctx: _sum_rows(g) * ctx.size)


class _ToFeatures(_Pair):
    exchange = staticmethod(_to_features)
    exchange_back = staticmethod(lambda g, ctx: _to_rows(g, ctx.features) * ctx.size)


class _ToRows(_Pair):
    exchange = staticmethod(_to_rows)
    exchange_back = staticmethod(lambda g, ctx: _to_features(g) / ctx.size)


class _SumRows(_Pair):
    exchange = staticmethod(_sum_rows)
    exchange_back = staticmethod(lambda g, ctx: torch.cat(_gather(g)) / ctx.size)


class _SumGradients(_Pair):
    exchange = staticmethod(lambda x: x.view_as(x))
    exchange_back = staticmethod(lambda g, _: _sum(g))


class _OwnFeatures(_Pair):
    exchange = staticmethod(lambda x: slice_local(x, -1).contiguous())
    exchange_back = staticmethod(lambda g, ctx: _all_features(g, ctx.features))


class _AllFeatures(_Pair):
    exchange = staticmethod(_all_features)
    exchange_back = staticmethod(lambda g, _: slice_local(g, -1).contiguous())


class _Sum(_Pair):
    exchange = staticmethod(_sum)
    exchange_back = staticmethod(lambda g, _: g)
