"""Values with tensors inside as messages: a pickled skeleton, and each tensor's bytes as a raw buffer.

Any picklable value can be sent: tensors are found at any depth, in any container or object, since pickle walks it. The
receiver gets a tensor on its own device where the sender's was on its own accelerator, else on the CPU.
"""

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import SMPError

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}


class TensorMeta(NamedTuple):
    """The metadata of a tensor. `dtype`: its index in DTYPES."""

    dtype: int
    shape: tuple[int, ...]
    on_accelerator: bool
    requires_grad: bool


def pack(value: Any, model: Any = None, shared: Sequence[Any] = ()) -> tuple[bytes, list[Tensor]]:
    """Return *value* as a skeleton and its tensors, each once; *model* itself and its modules go by name.

    Tensors, lists and dictionaries in *shared*, which the receiver has too, go as their indices in it.

    Raises:
        SMPError: something in *value* cannot be pickled.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, model, shared)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SMPError(
            f"expected a value that can be pickled between partitions, found {type(value).__name__}: {error}"
        ) from error
    return file.getvalue(), pickler.tensors


def unpack(skeleton: bytes, tensors: Sequence[Tensor], model: Any = None, shared: Sequence[Any] = ()) -> Any:
    """Return the value of *skeleton* with *tensors* in it; *shared* has this rank's objects for those of `pack`."""
    return _Unpickler(io.BytesIO(skeleton), tensors, model, shared).load()


def describe(tensors: Sequence[Tensor]) -> list[TensorMeta]:
    """Return the metadata of *tensors*.

    Raises:
        SMPError: one of them is sparse or quantized, on the meta device, or of a type that cannot be sent.
    """
    return [_describe_tensor(tensor) for tensor in tensors]


def get_buffers(tensors: Sequence[Tensor]) -> list[memoryview]:
    """Return the bytes of *tensors*, where they are if they are contiguous and on the CPU, else copies."""
    return [_bytes_of(tensor) for tensor in tensors]


def rebuild_tensors(metas: Sequence[TensorMeta], buffers: Sequence[memoryview], device: torch.device) -> list[Tensor]:
    """Return new tensors that use the memory of *buffers*; those from an accelerator go to *device*."""
    tensors = []
    for meta, buffer in zip(metas, buffers, strict=True):
        tensor: Any = torch.empty((0,), dtype=DTYPES[meta.dtype])
        if len(buffer):
            # No view: autograd forbids changes in place of views that a custom Function returns.
            tensor.set_(torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage(), 0, meta.shape)
        else:
            tensor.resize_(meta.shape)
        tensors.append(tensor.to(device) if meta.on_accelerator else tensor)
    return tensors


def _describe_tensor(tensor: Tensor) -> TensorMeta:
    number = NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout != torch.strided:
        raise SMPError(
            f"expected a dense tensor of an ordinary type between partitions, found one of {tensor.dtype}, "
            f"{tensor.layout}: convert it before it goes to a module of another partition"
        )
    if tensor.device.type == "meta":
        raise SMPError(
            "expected a tensor with data, found one on the meta device: a parameter or buffer of another partition "
            "cannot be an argument; use smp.set_partition to put both modules into one partition"
        )
    return TensorMeta(number, tuple(tensor.shape), tensor.device.type != "cpu", tensor.requires_grad)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach()
    if flat.device.type != "cpu":
        flat = flat.cpu()
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    view: Any = flat.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(view)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, model: Any, shared: Sequence[Any]) -> None:
        super().__init__(file, 5)
        self.tensors: list[Tensor] = []
        self._model = model
        self._shared_ids = {id(value): -1 - index for index, value in reversed(list(enumerate(shared)))}
        self._indices: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if self._shared_ids and (shared_id := self._shared_ids.get(id(value))) is not None:
            return shared_id
        if isinstance(value, Tensor):
            index = self._indices.setdefault(id(value), len(self.tensors))
            if index == len(self.tensors):
                self.tensors.append(value)
            return index
        if self._model is not None and isinstance(value, torch.nn.Module):
            return self._model.path_of(value)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor], model: Any, shared: Sequence[Any]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._model = model
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        if not isinstance(pid, int):
            return self._model.module_at(pid)
        return self._tensors[pid] if pid >= 0 else self._shared[-1 - pid]
