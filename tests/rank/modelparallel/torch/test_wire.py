"""Values with tensors, as messages between partitions."""

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Pair(NamedTuple):
    left: Any
    right: Any


class Cache:
    """An object of a user's own class."""

    def __init__(self, keys: Any) -> None:
        self.keys = keys


def sent(value: Any) -> Any:
    from toolkit.rank.modelparallel.torch import wire

    skeleton, tensors = wire.pack(value)
    metas = wire.describe(tensors)
    copies = [memoryview(bytearray(buffer)) for buffer in wire.get_buffers(tensors)]
    return wire.unpack(skeleton, wire.rebuild_tensors(metas, copies, torch.device("cpu")))


def test_tensors_arrive_at_any_depth_of_any_object() -> None:
    x = torch.arange(6.0).reshape(2, 3)

    received = sent(([x, None], {"pair": Pair(x.t(), "text"), "cache": Cache([x[:, 1]])}))

    assert torch.equal(received[0][0], x)
    assert received[0][1] is None
    assert torch.equal(received[1]["pair"].left, x.t())
    assert received[1]["pair"].right == "text"
    assert torch.equal(received[1]["cache"].keys[0], torch.tensor([1.0, 4.0]))


def test_every_type_arrives_bit_for_bit() -> None:
    from toolkit.rank.modelparallel.torch import wire

    for dtype in wire.DTYPES:
        bits = torch.randint(0, 2 if dtype is torch.bool else 256, (2, 3, 16), dtype=torch.uint8)
        value = bits.view(dtype) if dtype is not torch.bool else bits.bool()
        received = sent(value)
        assert received.dtype is dtype
        assert received.shape == value.shape
        assert torch.equal(received.view(torch.uint8), value.view(torch.uint8))
    assert sent(torch.empty(0, 4)).shape == (0, 4)
    assert sent(torch.tensor(2.5)).item() == 2.5
    assert torch.equal(sent(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))


def test_a_tensor_that_stands_twice_in_a_value_is_sent_once() -> None:
    x = torch.ones(3)

    first, second = sent((x, x))

    assert first is second


def test_what_cannot_be_sent_is_named() -> None:
    from toolkit.rank.modelparallel.errors import SMPError

    with pytest.raises(SMPError, match="can be pickled between partitions, found dict"):
        sent({"function": lambda: 1})
    with pytest.raises(SMPError, match=r"dense tensor .* found one of torch.float32, torch.sparse_coo"):
        sent(torch.eye(2).to_sparse())
    with pytest.raises(SMPError, match=r"found one on the meta device: .* smp.set_partition"):
        sent(torch.empty(2, device="meta"))
