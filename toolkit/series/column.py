"""A column of samples."""

from toolkit.records import Record


class SampleColumn(Record, frozen=True, kw_only=True):
    """`name`: KIND/NAME/METRIC, as cpu/core3/used_percent. `unit`: "%", "bytes", "bytes/s", "" where there is none."""

    name: str
    unit: str = ""


class Header(Record, frozen=True, kw_only=True):
    """The JSON header of a file of samples. `level`: 0 for raw values, else the seconds of a bucket."""

    level: int
    columns: tuple[SampleColumn, ...]
    kind: str = "samples"
