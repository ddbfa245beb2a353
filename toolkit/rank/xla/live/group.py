"""The process group "xla" on CPU, which torch_xla lacks: XLA computes, gloo transfers between host memories.

Goals: DistributedDataParallel and every collective of torch.distributed on XLA tensors, with replicas equal to the last
bit (gloo reduces each piece in one rank and sends the result to all). Each call computes all recorded operations,
copies to the host, waits for gloo and copies back: nothing runs on after it returns. CPU tensors are accepted, too.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from toolkit.rank.frameworks.torch.distributed import make_finished_work
from toolkit.rank.xla.live.staging import to_host, write_back

C10D: Any = distributed_c10d  # Its type stubs are incomplete.
# Each collective's arguments: "out" is only written, "both" is read and written, the rest is only read.
WRITES: dict[str, tuple[str, ...]] = {
    "allreduce": ("both",),
    "allreduce_coalesced": ("both",),
    "broadcast": ("both",),
    "reduce": ("both",),
    "allgather": ("out", "in"),
    "allgather_coalesced": ("out", "in"),
    "_allgather_base": ("out", "in"),
    "reduce_scatter": ("out", "in"),
    "_reduce_scatter_base": ("out", "in"),
    "alltoall_base": ("out", "in"),
    "gather": ("out", "in"),
    "scatter": ("out", "in"),
    "send": ("in",),
    "recv": ("out",),
    "recv_anysource": ("out",),
}


def _make_collective(name: str, kinds: tuple[str, ...]) -> Any:
    """Return the method *name*, with gloo's arguments; tensors are staged by *kinds*."""

    def call(self: "HostGroup", *arguments: Any, **options: Any) -> Any:
        tensors = [_list_tensors(argument) for argument in arguments[: len(kinds)]]
        sources = [
            tensor
            for kind, tensors_of_argument in zip(kinds, tensors, strict=True)
            if kind != "out"
            for tensor in tensors_of_argument
        ]
        read = iter(to_host(sources))
        hosts = [
            [
                torch.empty(tensor.shape, dtype=tensor.dtype) if kind == "out" else next(read)
                for tensor in tensors_of_argument
            ]
            for kind, tensors_of_argument in zip(kinds, tensors, strict=True)
        ]
        staged = [
            _replace_tensors(argument, iter(hosts_of_argument))
            for argument, hosts_of_argument in zip(arguments, hosts, strict=False)
        ]
        rest = (*arguments[len(kinds) :], *options.values())
        averages = [option for option in rest if getattr(option, "reduceOp", None) == C10D.ReduceOp.AVG]
        for option in averages:
            option.reduceOp = C10D.ReduceOp.SUM  # gloo cannot average.
        getattr(self._gloo, name)(*staged, *rest).wait()
        written: list[Any] = []
        for kind, tensors_of_argument, host, argument in zip(kinds, tensors, hosts, arguments, strict=False):
            if kind == "in":
                continue
            for tensor in host if averages else ():
                tensor.div_(self.size())
            write_back(tensors_of_argument, host)
            written = argument if isinstance(argument, list) else [argument]
        return make_finished_work(written)

    call.__name__ = name
    return call


def _add_collectives(group: type) -> type:
    for name, kinds in WRITES.items():
        setattr(group, name, _make_collective(name, kinds))
    return group


@_add_collectives
class HostGroup(C10D.ProcessGroup):  # type: ignore[misc]
    """A group of ranks. torch.distributed creates it for init_process_group("xla") and new_group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = C10D.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._name = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "xla"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def barrier(self, *arguments: Any, **options: Any) -> Any:
        self._gloo.barrier(*arguments, **options).wait()
        return make_finished_work([])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *_: Any, **__: Any) -> Any:
        """Exchange tensors between each pair of ranks: gloo has no all-to-all for lists of unequal tensors."""
        hosts, rank = to_host(inputs), self.rank()
        received = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in outputs]
        received[rank].copy_(hosts[rank])
        others = [peer for peer in range(self.size()) if peer != rank]
        sent = [self._gloo.send([hosts[peer]], peer, 0) for peer in others]
        for work in [self._gloo.recv([received[peer]], peer, 0) for peer in others]:
            work.wait()
        for work in sent:
            work.wait()
        write_back(outputs, received)
        return make_finished_work(outputs)


def _list_tensors(argument: Any) -> list[Tensor]:
    if isinstance(argument, Tensor):
        return [argument]
    return [tensor for part in argument for tensor in _list_tensors(part)]


def _replace_tensors(argument: Any, tensors: Any) -> Any:
    """Return *argument* with its tensors replaced by *tensors*."""
    if isinstance(argument, Tensor):
        return next(tensors)
    return [_replace_tensors(part, tensors) for part in argument]
