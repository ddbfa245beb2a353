"""The bytes that a forward pass saves for the backward pass."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from toolkit.modelparallel.torch.saved import SavedBytes  # noqa: E402


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
