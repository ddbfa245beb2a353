"""The work that `train` does on a host before it starts the ranks."""

from typing import Literal

from toolkit.records import Record

PreparationName = Literal["source", "channels", "requirements", "checkpoints"]


class Preparation(Record, frozen=True, kw_only=True):
    """A kind of work that `train` did before it started the ranks."""

    name: PreparationName
    took_s: float
