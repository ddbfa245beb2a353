"""Builds the tables of the start: what each host did until its slowest rank had ended its first step."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolkit.commands.report.model import Block, Cell, make_table
from toolkit.commands.report.sections.words import count_words
from toolkit.records import Record
from toolkit.series.preparation import PreparationName
from toolkit.series.start_up import NETWORK_FILESYSTEMS, HostStart, RankStart

if TYPE_CHECKING:
    from toolkit.series.step_records import StepTable

MOST_HOSTS = 4
# Title and formula of each part, in their order.
PARTS: dict[str, tuple[str, str]] = {
    "platform": ("platform and image", "from the job's start to that of `train`"),
    "source": ("source", "fetching and unpacking the code"),
    "channels": ("channels", "fetching the channels that are in storage"),
    "requirements": ("requirements", "pip or uv, and waiting for another of this container"),
    "checkpoints": ("checkpoints restored", "fetching them from storage"),
    "launcher": (
        "train, launcher, interpreter",
        "the rest until the rank's script: `train` itself, waiting for other hosts, torchrun, Python",
    ),
    "imports": ("imports", "time inside of import statements, of packages"),
    "group": ("process group", "time inside of torch.distributed.init_process_group"),
    "script": ("the script's own work", "the rest until the first step: data sets, models, their way to the devices"),
    "first_batch": ("first batch", "of the first step: time inside of the data loader's next()"),
    "compiled": ("compile", "of the first step: time inside of torch.compile"),
    "first_step": ("rest of the first step", "the rest of the first step"),
}
_OF_TRAIN: tuple[PreparationName, ...] = ("source", "channels", "requirements", "checkpoints")


class StartUp(Record, frozen=True, kw_only=True):
    """The start of one host until its slowest rank had ended its first step."""

    host: str
    rank: int
    """The slowest rank."""
    total_s: float
    """From the job's start to the end of the rank's first step."""
    parts_s: dict[str, float]
    """The seconds of each of PARTS that is known."""
    start: RankStart
    """What the rank measured."""


def measure(host: str, began_s: float, start: HostStart, steps: "StepTable") -> StartUp | None:
    """Return the start of *host*, None where no rank with a first step was measured. *began_s*: the job's start."""
    ranks = [measured for rank in steps.ranks if (measured := _measure(host, rank, began_s, start, steps)) is not None]
    return max(ranks, key=lambda measured: measured.total_s, default=None)


def _measure(host: str, rank: int, began_s: float, start: HostStart, steps: "StepTable") -> StartUp | None:
    own, table = start.ranks.get(rank), steps.of(rank)
    if own is None or not len(table):
        return None
    end_s, step_s = float(table.end_s[0]), float(table.step_s[0])
    if math.isnan(step_s) or end_s - step_s < began_s:
        return None
    parts = {preparation.name: preparation.took_s for preparation in start.preparations}
    seconds: dict[str, float] = {name: parts[name] for name in _OF_TRAIN if parts.get(name)}
    if start.train_s > began_s:
        seconds["platform"] = start.train_s - began_s
    before_s = end_s - step_s - began_s
    seconds["launcher"] = max(before_s - own.before_s - sum(seconds.values()), 0.0)
    seconds["imports"] = own.imports_s
    seconds["group"] = own.group_s
    seconds["script"] = max(own.before_s - own.imports_s - own.group_s, 0.0)
    for name, column in (("first_batch", table.data_s), ("compiled", table.compile_s)):
        value = float(column[0])
        if not math.isnan(value):
            seconds[name] = value
    seconds["first_step"] = max(step_s - seconds.get("first_batch", 0.0) - seconds.get("compiled", 0.0), 0.0)
    return StartUp(host=host, rank=rank, total_s=end_s - began_s, parts_s=seconds, start=own)


def build_blocks(starts: Iterable[StartUp]) -> list[Block]:
    """Return the tables of *starts*: the parts of the slowest hosts, and the imports of the slowest rank."""
    slowest = sorted(starts, key=lambda start: -start.total_s)
    if not slowest:
        return []
    told = slowest[:MOST_HOSTS]
    rows: list[tuple[Cell, ...]] = [
        (title, *(start.parts_s.get(name) for start in told))
        for name, (title, _) in PARTS.items()
        if any(start.parts_s.get(name) for start in told)
    ]
    more = f" {count_words(len(slowest) - len(told), 'host')} were faster." if len(slowest) > len(told) else ""
    blocks: list[Block] = [
        make_table(
            "start-up",
            "Until the first step",
            ("part", *((f"{start.host}, rank {start.rank}", "s") for start in told)),
            rows,
            total=("total", *(start.total_s for start in told)),
            note=f"Of each host, its slowest rank, from the job's start to the end of its first step.{more}",
        )
    ]
    first = told[0]
    if first.start.packages:
        blocks.append(
            make_table(
                "imports",
                "The slowest imports",
                ("package", ("time", "s"), "file system"),
                [(package.name, package.took_s, package.filesystem) for package in first.start.packages],
                note=f"Of rank {first.rank} on {first.host}.{_describe_network(first)}",
            )
        )
    return blocks


def _describe_network(start: StartUp) -> str:
    names = [package.name for package in start.start.packages if package.filesystem in NETWORK_FILESYSTEMS]
    return f" {', '.join(names)}: from a network file system." if names else ""
