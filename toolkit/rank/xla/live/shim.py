"""Replaces a missing torch_xla for jobs that ask for it (TOOLKIT_COMPAT=torch_xla).

torch_xla's functions are implemented by torch: eagerly on CUDA if there is a GPU, else on the CPU; between ranks by
NCCL or gloo; torch_xla.compile is torch.compile. toolkit/rank/compat/torch_xla exports them under torch_xla's module
names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from toolkit.rank.xla.live.collectives import C10D, Collectives
from toolkit.rank.xla.position import XlaPosition, read_position

CUDA_AND_CPU = "cuda:nccl,cpu:gloo"


class DirectStaging:
    """Transfers tensors from their own memory (collectives.Staging)."""

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]

    def write_back(self, targets: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for target, copy in zip(targets, copies, strict=True):
                target.copy_(copy.view(target.shape))

    def settle(self) -> None:
        """Do nothing: nothing is recorded."""

    def portable(self, data: Any) -> Any:
        return move_to_device(data, torch.device("cpu"))


class TorchPosition(XlaPosition):
    """A position whose groups are torch.distributed's, for tensors on a GPU and on the host."""

    def group(self, ranks: Sequence[int] | None = None) -> Any:
        if self.size == 1:
            return None
        if not C10D.is_initialized():
            C10D.init_process_group(CUDA_AND_CPU if torch.cuda.is_available() else "gloo")
        if ranks is None:
            return C10D.group.WORLD
        members = tuple(ranks)
        if members not in self._groups:
            self._groups[members] = C10D.new_group(list(members), use_local_synchronization=True)
        return self._groups[members]


class XlaModel(Collectives):
    """torch_xla.core.xla_model for this rank, and torch_xla's other functions that depend on the rank."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        position = read_position(environ)
        super().__init__(
            TorchPosition(**{name: getattr(position, name) for name in XlaPosition.FIELDS}), DirectStaging()
        )
        self._closures: list[Callable[[], Any]] = []

    @property
    def position(self) -> XlaPosition:
        return self._position

    def device(self, index: int | None = None) -> torch.device:
        """Return this rank's device. Every rank has one."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        number = self._position.local_rank % torch.cuda.device_count() if index is None else index
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def xla_device(self, n: int | None = None, devkind: str | None = None) -> torch.device:
        return self.device(n)

    def get_xla_supported_devices(self, devkind: str | None = None, max_devices: int | None = None) -> list[str]:
        return [str(self.device())]

    def xla_device_hw(self, device: torch.device | str) -> str:
        return {"cuda": "GPU"}.get(torch.device(device).type, "CPU")

    def is_xla_tensor(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device().type

    def xrt_world_size(self, defval: int = 1) -> int:
        return self._position.size

    def get_ordinal(self, defval: int = 0) -> int:
        return self._position.rank

    def get_local_ordinal(self, defval: int = 0) -> int:
        return self._position.local_rank

    def is_master_ordinal(self, local: bool = True) -> bool:
        return (self._position.local_rank if local else self._position.rank) == 0

    def master_print(self, *values: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
        if self.is_master_ordinal(local):
            print(*values, file=fd, flush=flush)

    def add_step_closure(self, closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False) -> None:
        self._closures.append(lambda: closure(*args))

    def mark_step(self, wait: bool = False, reset_scope: bool = True) -> None:
        """End a step: run its closures. Nothing is recorded, so nothing is left to compute."""
        closures, self._closures = self._closures, []
        for closure in closures:
            closure()

    def wait_device_ops(self, devices: Sequence[str] = ()) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _fetch_gradients(self, optimizer: Any) -> list[Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [parameter.grad.data for parameter in parameters if parameter.grad is not None]

    def reduce_gradients(self, optimizer: Any, groups: Any = None, pin_layout: bool = True) -> None:
        if self._position.size > 1:
            self.all_reduce("sum", self._fetch_gradients(optimizer), 1.0 / self._position.size, groups)

    def optimizer_step(
        self,
        optimizer: Any,
        barrier: bool = False,
        optimizer_args: Mapping[str, Any] | None = None,
        groups: Any = None,
        pin_layout: bool = True,
    ) -> Any:
        self.reduce_gradients(optimizer, groups)
        loss = optimizer.step(**(optimizer_args or {}))
        if barrier:
            self.mark_step()
        return loss

    def broadcast_master_param(self, model: torch.nn.Module) -> None:
        self.collective_broadcast([*model.parameters(), *model.buffers()])

    def rendezvous(self, tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
        return self.xla_rendezvous(payload, replicas or None, tag)

    def do_on_ordinals(self, target: Callable[..., Any], data: Any = (), ordinals: Any = (0,)) -> Any:
        chosen = (ordinals,) if isinstance(ordinals, int) else ordinals
        result = target(*data) if self._position.rank in chosen else None
        self.rendezvous("do_on_ordinals")
        return result

    def save(self, data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
        if not master_only or self.is_master_ordinal(local=not global_master):
            torch.save(self._staging.portable(data), file_or_path)

    def send_cpu_data_to_device(self, datas: Any, device: Any, input_sharding: Any = None) -> Any:
        return move_to_device([datas] if isinstance(datas, Tensor) else datas, device)

    def _maybe_convert_to_cpu(self, data: Any, convert: bool = True) -> Any:
        """Return *data* with its tensors on the host, as torch_xla's `save` and transformers' `save_model` want it."""
        return self._staging.portable(data) if convert else data

    def set_replication(self, device: Any, devices: Sequence[Any]) -> None:
        """Do nothing: each rank has one device. accelerate calls it in each process."""

    def set_rng_state(self, seed: int, device: Any = None) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> int:
        return torch.initial_seed()

    def launch(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        start_method: str = "spawn",
        debug_single_process: bool = False,
    ) -> None:
        """Call *fn* in this process: the job's launcher has started the ranks."""
        fn(self._position.rank, *args)

    def spawn(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        fn(self._position.rank, *args)

    def loader(self, batches: Any, device: Any = None, **options: Any) -> "DeviceLoader":
        """Return MpDeviceLoader: *batches* on the device, with a step marked after each."""
        return DeviceLoader(batches, device or self.device(), self.mark_step)


class DeviceLoader:
    """Batches of a loader, on a device. `_loader`: subclasses of torch_xla's class use it, as accelerate's does."""

    def __init__(self, batches: Any, device: Any, end_of_step: Callable[[], None]) -> None:
        self._loader = batches
        self._device = torch.device(device)
        self._end_of_step = end_of_step

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield move_to_device(batch, self._device)
            self._end_of_step()

    def __len__(self) -> int:
        return len(self._loader)

    def per_device_loader(self, device: Any) -> "DeviceLoader":
        """Return the loader for *device*, as ParallelLoader does."""
        return DeviceLoader(self._loader, device, self._end_of_step)


def compile_function(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """Return torch_xla.compile's result: *f* compiled by torch.compile, or without *f* an empty context manager."""
    return nullcontext() if f is None else torch.compile(f, fullgraph=full_graph)


def move_to_device(data: Any, device: torch.device) -> Any:
    """Return *data* (nested lists, tuples and dictionaries) with its tensors on *device*."""
    if isinstance(data, Tensor):
        return data.to(device)
    if isinstance(data, Mapping):
        items = {key: move_to_device(value, device) for key, value in data.items()}
        return items if type(data) is dict else type(data)(items)  # type: ignore[call-arg]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to_device(value, device) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(move_to_device(value, device) for value in data)
    return data


def register_backend() -> None:
    """Make init_process_group("xla", init_method="xla://") use NCCL and gloo; later calls do nothing."""
    if hasattr(C10D.Backend, "XLA"):
        return
    on_cuda = torch.cuda.is_available()

    def create_backend(store: Any, rank: int, size: int, timeout: Any) -> Any:
        if on_cuda:
            return C10D.ProcessGroupNCCL(store, rank, size, timeout)
        return C10D.ProcessGroupGloo(store, rank, size, timeout)

    C10D.Backend.register_backend("xla", create_backend, devices=["cuda"] if on_cuda else ["cpu"])

    def by_environment(url: str, *arguments: Any, **options: Any) -> Any:
        return C10D.rendezvous("env://", *arguments, **options)

    C10D.torch.distributed.register_rendezvous_handler("xla", by_environment)
