"""The scaling of learning rate and weight decay to a batch size, with the numbers of AWS's two notebooks."""

import json
import subprocess
import sys

import pytest

from toolkit.commands.batch.scaling import global_batch, learning_rate, scaled, weight_decay
from toolkit.errors import UserError


def scale(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toolkit", "scale", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_vision_transformer_with_a_batch_of_56_in_place_of_77() -> None:
    assert learning_rate(1e-3, old_batch=77, new_batch=56) == pytest.approx(1e-3 * 56 / 77)
    assert weight_decay(1e-4, old_batch=77, new_batch=56) == pytest.approx(1e-4 * 77 / 56)


@pytest.mark.parametrize(("per_device", "rate"), [(10, 6.25e-5), (20, 1.25e-4)])
def test_gpt2s_rate_is_set_for_a_global_batch_of_32(per_device: int, rate: float) -> None:
    batch = global_batch(per_device, devices=4, hosts=1)

    assert learning_rate(5e-5, old_batch=32, new_batch=batch) == pytest.approx(rate, rel=1e-12)
    assert learning_rate(5e-5, old_batch=32, new_batch=batch) == pytest.approx(5e-5 / 32 * batch, rel=1e-12)


def test_the_global_batch_counts_devices_hosts_and_accumulated_batches() -> None:
    assert global_batch(8, devices=4, hosts=3, accumulation=2) == 192


def test_there_and_back_is_where_it_began() -> None:
    smaller = scaled(old_batch=48, new_batch=7, rate=0.3, decay=0.01)
    back = scaled(old_batch=7, new_batch=48, rate=smaller.learning_rate, decay=smaller.weight_decay)

    assert (back.learning_rate, back.weight_decay) == pytest.approx((0.3, 0.01))
    assert scaled(old_batch=1, new_batch=2).learning_rate is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"old_batch": 0, "new_batch": 1}, "batch: expected a whole number of at least 1, found 0"),
        ({"old_batch": 1, "new_batch": -2}, "found -2"),
        ({"old_batch": 1, "new_batch": 1, "rate": -0.1}, "learning rate: expected a number of at least 0, found -0.1"),
        ({"old_batch": 1, "new_batch": 1, "decay": float("nan")}, "weight decay: expected a number of at least 0"),
    ],
)
def test_impossible_values_are_named(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        scaled(**values)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="devices: expected a whole number of at least 1, found 0"):
        global_batch(1, devices=0)


def test_the_command_says_both_values_and_the_global_batches() -> None:
    done = scale("--batch", "10", "--new-batch", "20", "--devices", "4", "--learning-rate", "1e-4", "--weight-decay=.1")

    assert done.stdout.splitlines() == [
        "global batch   40 -> 80 (x 2)",
        "learning rate  0.0001 -> 0.0002",
        "weight decay   0.1 -> 0.05",
    ]


def test_the_command_takes_another_number_of_devices_and_answers_in_json() -> None:
    done = scale("--batch", "32", "--new-batch", "20", "--new-devices", "4", "--learning-rate", "5e-5", "--json")

    assert json.loads(done.stdout) == {
        "old_batch": 32,
        "new_batch": 80,
        "factor": 2.5,
        "learning_rate": pytest.approx(1.25e-4),
        "weight_decay": None,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "8", "--learning-rate", "1"), "expected what changes, found nothing. Give --new-batch"),
        (("--batch", "8", "--new-batch", "4"), "expected a value to scale, found none. Give --learning-rate"),
        (("--batch", "8", "--new-batch", "0", "--learning-rate", "1"), "batch per device: expected a whole number"),
        (("--batch", "8", "--new-batch", "4", "--learning-rate", "fast"), "expected a number, found 'fast'"),
    ],
)
def test_a_command_that_cannot_be_meant_ends_with_78(words: tuple[str, ...], message: str) -> None:
    done = scale(*words)

    assert done.returncode == 78
    assert message in done.stderr
