"""torch_xla's collectives for one rank, over a process group of torch's.

Each function has the name, arguments and result that torch_xla.core.xla_model documents. Ranks of torch_xla
(install.py: XLA computes, gloo transfers between host memories) and ranks with torch alone (shim.py) differ only in
the place of tensors during a transfer: the staging.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from toolkit.rank.xla.position import XlaPosition

C10D: Any = distributed_c10d  # Its type stubs are incomplete.
ReduceOp = C10D.ReduceOp
OPS = {
    "sum": ReduceOp.SUM,
    "mul": ReduceOp.PRODUCT,
    "product": ReduceOp.PRODUCT,
    "and": ReduceOp.BAND,
    "band": ReduceOp.BAND,
    "or": ReduceOp.BOR,
    "bor": ReduceOp.BOR,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
}
Groups = Sequence[Sequence[int]] | None


class Staging(Protocol):
    """Moves tensors to memory from which a collective can transfer them, and back."""

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return a contiguous copy of each tensor, in memory that the group can use."""

    def write_back(self, targets: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
        """Write each of *copies* into the same entry of *targets*."""

    def settle(self) -> None:
        """Compute all operations recorded so far."""

    def portable(self, data: Any) -> Any:
        """Return *data* with its tensors on the host."""


class Collectives:
    """The collectives of torch_xla.core.xla_model for one rank; docstrings name only differences."""

    NAMES = (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "collective_permute",
        "collective_broadcast",
        "send",
        "recv",
        "xla_rendezvous",
        "mesh_reduce",
    )

    def __init__(self, position: XlaPosition, staging: Staging) -> None:
        self._position = position
        self._staging = staging

    def all_reduce(
        self,
        reduce_type: str,
        inputs: Any,
        scale: float = 1.0,
        groups: Groups = None,
        pin_layout: bool = True,
    ) -> Any:
        """Reduce a tensor to a new tensor, or a list in position, with one message for each dtype."""
        tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        hosts = self._reduce(reduce_type, tensors, scale, groups)
        if isinstance(inputs, Tensor):
            return hosts[0].to(inputs.device)
        self._staging.write_back(tensors, hosts)
        return inputs

    def all_gather(
        self,
        value: Any,
        dim: int = 0,
        groups: Groups = None,
        output: Any = None,
        pin_layout: bool = True,
        channel_id: Any = None,
        use_global_device_ids: Any = None,
    ) -> Any:
        if not isinstance(value, Tensor):
            gathered = [self.all_gather(tensor, dim, groups) for tensor in value]
            if output is None:
                return gathered
            self._staging.write_back(output, gathered)
            return output
        (host,) = self._staging.copies([value])
        pieces = self._gather(host, self._position.group_among(groups))
        joined = torch.cat(pieces, dim) if host.dim() else torch.stack(pieces)
        if output is None:
            return joined.to(value.device)
        self._staging.write_back([output], [joined])
        return output

    def reduce_scatter(
        self,
        reduce_type: str,
        input: Any,
        scale: float,
        scatter_dim: int,
        shard_count: int,
        groups: Groups = None,
        output: Any = None,
        pin_layout: bool = True,
        channel_id: Any = None,
        use_global_device_ids: Any = None,
    ) -> Any:
        group = self._position.group_among(groups)
        tensors = [input] if isinstance(input, Tensor) else list(input)
        rank = 0 if group is None else group.rank()
        shards = [
            host.chunk(shard_count, scatter_dim)[rank].contiguous()
            for host in self._reduce(reduce_type, tensors, scale, groups)
        ]
        if output is not None:
            self._staging.write_back([output] if isinstance(input, Tensor) else output, shards)
            return output
        results = [shard.to(tensor.device) for shard, tensor in zip(shards, tensors, strict=True)]
        return results[0] if isinstance(input, Tensor) else results

    def all_to_all(
        self,
        value: Tensor,
        split_dimension: int,
        concat_dimension: int,
        split_count: int,
        groups: Groups = None,
        pin_layout: bool = True,
    ) -> Tensor:
        (host,) = self._staging.copies([value])
        group = self._position.group_among(groups)
        sent = torch.stack(host.chunk(split_count, split_dimension))
        received = torch.empty_like(sent)
        if group is None:
            received.copy_(sent)
        else:
            group.alltoall_base(received, sent, [], [], C10D.AllToAllOptions()).wait()
        return torch.cat(received.unbind(0), concat_dimension).to(value.device)

    def collective_permute(self, value: Tensor, pairs: Sequence[Sequence[int]]) -> Tensor:
        """Only the ranks in *pairs* need to call it; a rank that receives nothing gets zeros."""
        rank, group = self._position.rank, self._position.group()
        (host,) = self._staging.copies([value])
        received = torch.zeros_like(host)
        works = []
        for source, target in pairs:
            if source == target == rank:
                received.copy_(host)
            elif source == rank:
                works.append(group.send([host], target, 0))
            elif target == rank:
                works.append(group.recv([received], source, 0))
        for work in works:
            work.wait()
        return received.to(value.device)

    def collective_broadcast(
        self,
        tensors: Sequence[Tensor],
        root_ordinal: int = 0,
        groups: Any = None,
        pin_layout: bool = True,
    ) -> None:
        """Every rank gets exactly the root's bits, even if another rank's value is NaN."""
        groups = [groups] if groups and isinstance(groups[0], int) else groups
        group = self._position.group_among(groups)
        if group is None:
            return
        root = next((list(members).index(root_ordinal) for members in groups or () if root_ordinal in members), None)
        options = C10D.BroadcastOptions()
        options.rootRank = root_ordinal if root is None else root
        hosts = self._staging.copies(tensors)
        for hosts_of_dtype in _group_by_dtype(hosts).values():
            flat = torch.cat([host.reshape(-1) for host in hosts_of_dtype])
            group.broadcast([flat], options).wait()
            _unflatten(flat, hosts_of_dtype)
        self._staging.write_back(tensors, hosts)

    def send(self, value: Tensor, channel_id: int) -> Tensor:
        raise NotImplementedError("xm.send: there are no channels here; use xm.collective_permute")

    def recv(self, output: Tensor, channel_id: int) -> Tensor:
        raise NotImplementedError("xm.recv: there are no channels here; use xm.collective_permute")

    def xla_rendezvous(
        self, payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
    ) -> list[bytes]:
        """A subset of the ranks may meet, which torch_xla's own function does not support."""
        if not isinstance(payload, bytes):
            raise TypeError(f"`payload` must be bytes, not {type(payload)}")
        self._staging.settle()
        group = self._position.group(sorted(ordinals) if ordinals else None)
        length = torch.tensor([len(payload)], dtype=torch.int64)
        lengths = [int(gathered_length) for gathered_length in self._gather(length, group)]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        if not len(padded):
            return [b""] * len(lengths)
        padded[: len(payload)] = torch.tensor(list(payload), dtype=torch.uint8)
        pieces = self._gather(padded, group)
        return [bytes(piece[:count].tolist()) for piece, count in zip(pieces, lengths, strict=True)]

    def mesh_reduce(self, tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
        """Transfer any object, as before torch.load's weights_only was the default: it comes from the job's ranks."""
        written = io.BytesIO()
        torch.save(self._staging.portable(data), written)
        read = [io.BytesIO(payload_of_rank) for payload_of_rank in self.xla_rendezvous(written.getvalue(), tag=tag)]
        return reduce_fn([torch.load(file, weights_only=False) for file in read])

    def _reduce(self, reduce_type: str, tensors: Sequence[Tensor], scale: float, groups: Groups) -> list[Tensor]:
        """Return *tensors* reduced over the ranks and scaled, on the host."""
        hosts = self._staging.copies(tensors)
        group = self._position.group_among(groups)
        options = C10D.AllreduceOptions()
        options.reduceOp = OPS[reduce_type]
        for hosts_of_dtype in _group_by_dtype(hosts).values() if group is not None else ():
            flat = (
                hosts_of_dtype[0]
                if len(hosts_of_dtype) == 1
                else torch.cat([host.reshape(-1) for host in hosts_of_dtype])
            )
            group.allreduce([flat], options).wait()
            if len(hosts_of_dtype) > 1:
                _unflatten(flat, hosts_of_dtype)
        if scale != 1.0:
            hosts = [(host * scale).to(host.dtype) for host in hosts]
        return hosts

    def _gather(self, host: Tensor, group: Any) -> list[Tensor]:
        if group is None:
            return [host]
        pieces = [torch.empty_like(host) for _ in range(group.size())]
        group.allgather([pieces], [host], C10D.AllgatherOptions()).wait()
        return pieces


def _group_by_dtype(hosts: Sequence[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    hosts_by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for host in hosts:
        hosts_by_dtype.setdefault(host.dtype, []).append(host)
    return hosts_by_dtype


def _unflatten(flat: Tensor, hosts: Sequence[Tensor]) -> None:
    for host, piece in zip(hosts, torch.split_with_sizes(flat, [host.numel() for host in hosts]), strict=True):
        host.copy_(piece.view(host.shape))
