"""Pure: the speed of a job in words, how many steps or epochs its hyperparameters ask for, and when they are over."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.metrics.sample import Sample

# The names by which scripts are told how long to train.
STEPS = ("max_steps", "total_steps", "num_steps", "train_steps", "num_train_steps", "max_train_steps", "steps")
EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs", "n_epochs")


def format_speed(steps_per_s: float) -> str:
    """Return "41 steps/s"; below one step a second "2.5 s a step"."""
    if steps_per_s < 1:
        return f"{1 / steps_per_s:.3g} s a step"
    return f"{steps_per_s:.3g} steps/s" if steps_per_s < 1000 else f"{steps_per_s:,.0f} steps/s"


def describe_left(left_s: float | None, limit_left_s: float | None, format_time: Callable[[float], str]) -> str:
    """Return "about 3:20 left", with when max-run stops the job if that comes before; "" if neither is known.

    *left_s*: the seconds until the steps or epochs are done that the job is to do. *limit_left_s*: those until max-run
    stops it.
    """
    if left_s is None:
        return "" if limit_left_s is None else f"max-run ends it in {format_time(max(limit_left_s, 0.0))} at the latest"
    if limit_left_s is None or limit_left_s >= left_s:
        return f"about {format_time(left_s)} left"
    return f"about {format_time(left_s)} left to do, but max-run ends it in {format_time(max(limit_left_s, 0.0))}"


def find_count(hyperparameters: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of *hyperparameters* with one of *names* that is a number of 1 or more; None: there is none."""
    named = {name.lower().replace("-", "_"): value for name, value in hyperparameters.items()}
    for name in names:
        try:
            count = float(str(named.get(name, "")).strip('"'))
        except ValueError:
            continue
        if math.isfinite(count) and count >= 1:
            return int(count)
    return None


def estimate_epochs_left_s(epochs: int, samples: Sequence[Sample], now_s: float) -> float | None:
    """Return the seconds until *epochs* are over, by *samples* of the epoch's number, each printed at an epoch's end.

    None if there are fewer than two epochs in them, or all are over.
    """
    if len(samples) < 2 or not samples[-1].value > samples[0].value:
        return None
    first, last = samples[0], samples[-1]
    epoch_s = (last.time_s - first.time_s) / (last.value - first.value)
    left_s = (epochs - (last.value - first.value + 1)) * epoch_s - (now_s - last.time_s)
    return left_s if left_s > 0 else None
