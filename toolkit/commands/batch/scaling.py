"""Pure: the learning rate and weight decay for a new batch size, scaled linearly.

The rules are those of AWS's two notebooks for the SageMaker Training Compiler. "Compile and Train a Vision Transformer
Model on the Caltech-256 Dataset": lr' = lr * new / old and wd' = wd * old / new, on the global batch. "How to Speed Up
Model Training" (GPT-2 on SST-2): lr = 5e-5 / 32 * global batch, which is the first rule with an old batch of 32.

Linear scaling is a first guess: a very large batch usually needs a warm-up of the learning rate as well.
"""

import math

from toolkit.errors import UserError
from toolkit.records import Record


class ScaledHyperparameters(Record, frozen=True, kw_only=True):
    """Hyperparameters for a new batch. Batches are global."""

    old_batch: int
    """In samples per optimizer step."""
    new_batch: int
    """In samples per optimizer step."""
    factor: float
    """The new batch over the old one."""
    learning_rate: float | None = None
    """For the new batch; None: the old one was not given."""
    weight_decay: float | None = None
    """For the new batch; None: the old one was not given."""


def global_batch(per_device: int, *, devices: int = 1, hosts: int = 1, accumulation: int = 1) -> int:
    """Return the samples of one optimizer step: *per_device* x *devices* (of one host) x *hosts* x *accumulation*.

    *accumulation*: how many batches are accumulated before each optimizer step.

    Raises:
        UserError: a number is below 1.
    """
    for name, value in (
        ("batch per device", per_device),
        ("devices", devices),
        ("hosts", hosts),
        ("accumulation", accumulation),
    ):
        if value < 1:
            raise UserError(f"{name}: expected a whole number of at least 1, found {value}")
    return per_device * devices * hosts * accumulation


def learning_rate(old: float, *, old_batch: int, new_batch: int) -> float:
    """Return the learning rate for *new_batch*: it is proportional to the global batch.

    Raises:
        UserError: a batch is below 1, or *old* is negative or not a finite number.
    """
    _check("learning rate", old, old_batch, new_batch)
    return old * new_batch / old_batch


def weight_decay(old: float, *, old_batch: int, new_batch: int) -> float:
    """Return the weight decay for *new_batch*: it is inversely proportional to the global batch.

    Raises:
        UserError: a batch is below 1, or *old* is negative or not a finite number.
    """
    _check("weight decay", old, old_batch, new_batch)
    return old * old_batch / new_batch


def scaled(
    *, old_batch: int, new_batch: int, rate: float | None = None, decay: float | None = None
) -> ScaledHyperparameters:
    """Return learning rate and weight decay for *new_batch*, given the old *rate* and *decay*; None stays None.

    Raises:
        UserError: as `learning_rate` and `weight_decay`.
    """
    _check("batch", 0.0, old_batch, new_batch)
    return ScaledHyperparameters(
        old_batch=old_batch,
        new_batch=new_batch,
        factor=new_batch / old_batch,
        learning_rate=None if rate is None else learning_rate(rate, old_batch=old_batch, new_batch=new_batch),
        weight_decay=None if decay is None else weight_decay(decay, old_batch=old_batch, new_batch=new_batch),
    )


def _check(name: str, value: float, old_batch: int, new_batch: int) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{name}: expected a number of at least 0, found {value:g}")
    for batch in (old_batch, new_batch):
        if batch < 1:
            raise UserError(f"batch: expected a whole number of at least 1, found {batch}")
