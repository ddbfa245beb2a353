"""Two ranks' traces beside each other: what the slow one does more, by operator."""

from toolkit.commands.report.model import Column, Table
from toolkit.commands.report.sections.traced import TracePair
from toolkit.commands.report.sections.words import count_words
from toolkit.traces.chrome import ChromeTrace
from toolkit.traces.difference import TraceDifference, compare_traces
from toolkit.traces.figures import TOP
from toolkit.traces.ranks import compare_ranks

LONGEST = 40  # Letters of a name in a table.
NARROW = 30  # Beside five columns of numbers: a terminal has 100.
MILLI = 1e3


def compare_pair(pair: TracePair) -> Table:
    """Return the difference of *pair*, whichever is the slow one: the longer step; in a job in which all ranks' steps
    take equally long, the one that the other waits for."""
    one, other = pair.first, pair.second
    ranks = pair.first_rank, pair.second_rank
    found = compare_traces(one, other)
    if (found.first_step_s or 0) < (found.second_step_s or 0):
        one, other, ranks = other, one, ranks[::-1]
    if (late := compare_ranks([one, other]).straggler) is not None and late == other.rank:
        one, other, ranks = other, one, ranks[::-1]
    name = pair.window.replace("/", "-")
    return build_difference_table(f"difference-{name}", pair.window, one, other, *ranks)


def build_difference_table(
    name: str, window: str, slow: ChromeTrace, healthy: ChromeTrace, slow_rank: int, healthy_rank: int
) -> Table:
    """Return the table with the id *name* of what *slow* does more than *healthy*, the largest difference first."""
    found = compare_traces(slow, healthy)
    one, two = f"rank {slow_rank}", f"rank {healthy_rank}"
    return Table(
        id=name,
        title=f"What {one} does more than {two}, a step ({window})",
        columns=(
            Column(name="operator"),
            Column(name="more", unit="ms", formula=f"{one} less {two}"),
            Column(name=one, unit="ms", formula="self time / steps traced"),
            Column(name=two, unit="ms", formula="self time / steps traced"),
            Column(name=f"calls, {one}"),
            Column(name=f"calls, {two}"),
        ),
        rows=tuple(
            (
                shorten_name(each.name, NARROW),
                *(seconds * MILLI for seconds in (each.more_s, each.first_s, each.second_s)),
                each.first_calls,
                each.second_calls,
            )
            for each in found.changes[:TOP]
        ),
        note=_build_note(found, one, two),
    )


def shorten_name(name: str, longest: int = LONGEST) -> str:
    """Return a long *name* without its middle: a table must leave room for its numbers."""
    return name if len(name) <= longest else f"{name[: longest - 15]}...{name[-12:]}"


def _build_note(found: TraceDifference, one: str, two: str) -> str:
    left = len(found.changes) - TOP
    more = f" {count_words(left, 'smaller difference')} left out." if left > 0 else ""
    return (
        f"{count_words(found.first_steps, 'step')} of {one}, {count_words(found.second_steps, 'step')} of {two}.{more}"
    )
