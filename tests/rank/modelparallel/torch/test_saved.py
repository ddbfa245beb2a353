"""The bytes that a forward pass saves for the backward pass."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from toolkit.rank.modelparallel.torch.saved import SavedBytes  # noqa: E402


def test_saved_activations_count_once_and_until_the_backward_pass_and_parameters_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 1))
    meter = SavedBytes(model)
    meter.take_peak()
    losses = []

    def forward() -> None:
        with meter.watching():
            # The Linear saves its input and the Tanh its output, which is the next Linear's input: one storage.
            losses.append(model(torch.zeros(50, 10)).sum())

    forward()
    other_thread = threading.Thread(target=forward)
    other_thread.start()
    other_thread.join()

    assert meter.take_peak() == 2 * (50 * 10 + 50 * 1000) * 4
    losses.pop().backward()
    assert meter.take_peak() == 2 * (50 * 10 + 50 * 1000) * 4  # It began with both.
    losses.pop().backward()
    meter.take_peak()
    assert meter.take_peak() == 0


def test_torchs_function_transforms_run_where_saved_bytes_are_counted_and_refuse_other_hooks() -> None:
    model = torch.nn.Linear(3, 3)
    values = torch.ones(4, 3)
    plain = torch.func.vmap(torch.func.jacrev(model))(values)
    meter, other = SavedBytes(model), SavedBytes(model)
    meter.take_peak()

    with meter.watching(), other.watching():
        jacobians = torch.func.vmap(torch.func.jacrev(model))(values)
        total = model(values).sum()
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
            pytest.raises(RuntimeError, match="saved tensor hooks"),
        ):
            torch.func.grad(torch.sum)(values)

    assert torch.equal(jacobians, plain)
    assert other.take_peak() > 0  # The innermost hooks count again.
    del total
