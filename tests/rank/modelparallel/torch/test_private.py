"""Private names of torch, and what happens if a release of torch does not have them."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.torch import private

pytestmark = pytest.mark.torch


def double() -> Any:
    """Return a new autograd function."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return 2 * gradient

    return Double


def test_hooks_of_a_functions_nodes_are_observed_and_work() -> None:
    function, notes = double(), []
    assert private.observe_node_hooks(function, lambda _, is_prehook: notes.append(is_prehook))
    x = torch.ones(2, requires_grad=True)
    y = function.apply(x)

    y.register_hook(lambda gradient: gradient * 3)
    y.grad_fn.register_hook(lambda inputs, _: None)
    y.sum().backward()

    assert private.is_node_of(y.grad_fn, function) and not private.is_node_of(y.sum().grad_fn, function)
    assert notes == [True, False]
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("missing", ["register_hook", "register_prehook", "_register_hook_dict"])
def test_nothing_is_observed_if_a_method_is_missing(missing: str) -> None:
    class WithoutMethod:
        _backward_cls = type("Node", (), {})

    methods = {"register_hook", "register_prehook", "_register_hook_dict"} - {missing}
    originals = {name: object() for name in methods}
    for name, method in originals.items():
        setattr(WithoutMethod._backward_cls, name, method)

    assert not private.observe_node_hooks(WithoutMethod, lambda *_: None)  # type: ignore[arg-type]

    assert {name: vars(WithoutMethod._backward_cls)[name] for name in methods} == originals


def test_a_torch_without_nodes_of_functions_observes_nothing() -> None:
    assert not private.observe_node_hooks(object, lambda *_: None)  # type: ignore[arg-type]
    assert not private.is_node_of(object(), object)  # type: ignore[arg-type]


def test_a_module_runs_another_function_until_torch_has_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Linear(2, 2)
    plain = private.get_call_impl(module)

    private.set_call_impl(module, lambda x: plain(x) + 1)

    x = torch.ones(2)
    assert torch.equal(module(x), plain(x) + 1)
    monkeypatch.delattr(torch.nn.Module, "_compiled_call_impl")
    with pytest.raises(SMPError, match=r"_compiled_call_impl .*, or set the parameter partitions to 1"):
        private.set_call_impl(module, plain)


def test_a_tensor_that_a_graph_holds_is_swapped() -> None:
    a, b = torch.zeros(2, requires_grad=True), torch.ones(3)
    total = (2 * a).sum()

    private.swap_tensors(a, b)

    assert (a.tolist(), b.tolist()) == ([1.0, 1.0, 1.0], [0.0, 0.0])
    assert total.requires_grad
