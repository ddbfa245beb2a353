"""Keeping the replicas of a model equal: parameters and buffers start equal, gradients are averaged once a step."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from toolkit.rank.modelparallel.torch.averaging import Averager, CommHook
from toolkit.rank.modelparallel.torch.tensor.sharding import MARK


class ReplicaAverager:
    """Keeps the replicas of *model* equal; DistributedModel makes one, with its keywords of the same names.

    A parameter that every tensor parallel rank has whole (it sees other samples there) is averaged over the data
    parallel group, one of which each has its own part over the reduced one.
    """

    def __init__(
        self,
        model: Any,
        groups: Mapping[str, Any],
        *,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        bucket_cap_mb: float = 25,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        self._groups = {kind: group for kind, group in groups.items() if dist.get_world_size(group) > 1}
        self._passes = backward_passes_per_step
        self._done = 0
        self._broadcast_buffers = broadcast_buffers
        self._options: dict[str, Any] = {
            "overlapping": overlapping_allreduce,
            "bucket_cap_mb": bucket_cap_mb,
            "as_bucket_view": gradient_as_bucket_view,
        }
        self._model = model
        self._equal: dict[int, torch.Tensor] = {}  # By id: the parameters that began with the first replica's values.
        self._idle: list[torch.Tensor] = []  # Those of them that need no gradient, which the script may change.
        self._averagers: dict[str, Averager] = {}  # By kind of group, all of whose reductions have one order.
        self._comm_hook: tuple[Any, CommHook] | None = None
        model.on_partition(self._begin)
        model.on_addition(self._begin)
        model.on_step_end(self._end)

    @property
    def averagers(self) -> list[Averager]:
        """Return those that average gradients here."""
        return list(self._averagers.values())

    def register_comm_hook(self, state: Any, hook: CommHook) -> None:
        """Let *hook* average gradients, as with torch.nn.parallel.DistributedDataParallel."""
        self._comm_hook = (state, hook)
        for averager in self.averagers:
            averager.register_comm_hook(state, hook)

    def flush(self) -> None:
        """Average gradients that wait for more backward passes, before the optimizer uses them."""
        if self._done:
            self._done = 0
            for averager in self.averagers:
                averager.finish(self._passes == 1)

    def _begin(self, model: Any) -> None:
        self._add_parameters(model)
        self._equalise_buffers()

    def _add_parameters(self, model: Any) -> None:
        """Average also the parameters that *model* has or that need a gradient only now."""
        # fully_shard averages the others (sharded.py).
        parameters = [parameter for parameter in model.local_parameters() if not is_spread(parameter)]
        averaged = {id(parameter) for averager in self.averagers for parameter in averager.parameters}
        for kind, group in self._groups.items():
            kind_parameters = [parameter for parameter in parameters if is_distributed(parameter) == (kind == "rdp")]
            new = [parameter for parameter in kind_parameters if id(parameter) not in self._equal]
            equalise([parameter.detach() for parameter in new], group)
            self._equal |= {id(parameter): parameter for parameter in new}
            trained = [
                parameter for parameter in kind_parameters if parameter.requires_grad and id(parameter) not in averaged
            ]
            if kind in self._averagers:
                self._averagers[kind].add(trained)
            elif trained:
                averager = self._averagers[kind] = Averager(trained, group, **self._options)
                if self._comm_hook:
                    averager.register_comm_hook(*self._comm_hook)
                averager.hold(self._passes == 1)
        self._idle = [parameter for parameter in parameters if not parameter.requires_grad]

    def _end(self, model: Any) -> None:
        if any(parameter.requires_grad for parameter in self._idle):
            self._add_parameters(model)
        self._done += 1
        if self._done == self._passes:
            self.flush()
        else:
            for averager in self.averagers:
                averager.hold(self._done + 1 == self._passes)
        if self._broadcast_buffers:
            self._equalise_buffers()

    def _equalise_buffers(self) -> None:
        if "dp" in self._groups:
            equalise(self._model.local_buffers(), self._groups["dp"])  # A module may have put others in their place.


def is_distributed(parameter: torch.Tensor) -> bool:
    """Return whether each tensor parallel rank has a part of its own of *parameter*."""
    return hasattr(parameter, MARK)


def is_spread(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* is a DTensor: sharded data parallelism's (sharded.py). Its import takes a second."""
    return hasattr(tensor, "placements")


def equalise(tensors: Iterable[torch.Tensor], group: Any) -> None:
    """Give every rank of *group* the first rank's *tensors*, which have equal shapes on all."""
    source = dist.get_global_rank(group, 0)
    work = [dist.broadcast(tensor.detach(), source, group=group, async_op=True) for tensor in tensors]
    for broadcast in work:
        broadcast.wait()
