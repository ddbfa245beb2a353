"""Builds the table of two ranks' traces: the operators in which the slow one spends more time."""

from toolkit.commands.report.model import Table, make_table
from toolkit.commands.report.sections.traced import TracePair
from toolkit.commands.report.sections.words import count_words
from toolkit.traces.chrome import ChromeTrace
from toolkit.traces.difference import TraceDifference, compare_traces
from toolkit.traces.figures import TOP
from toolkit.traces.rank_comparison import compare_ranks

LONGEST = 40  # Letters of a name in a table.
NARROW = 30  # Beside five columns of numbers: a terminal has 100.
MILLI = 1e3


def compare_pair(pair: TracePair) -> Table:
    """Return the table of *pair*. The slow rank is the one with the longer step; if the steps of all ranks take equally
    long, it is the rank that the other waits for."""
    slow, healthy = pair.first, pair.second
    ranks = pair.first_rank, pair.second_rank
    change = compare_traces(slow, healthy)
    if (change.first_step_s or 0) < (change.second_step_s or 0):
        slow, healthy, ranks = healthy, slow, ranks[::-1]
    if (late := compare_ranks([slow, healthy]).straggler) is not None and late == healthy.rank:
        slow, healthy, ranks = healthy, slow, ranks[::-1]
    name = pair.window.replace("/", "-")
    return build_difference_table(f"difference-{name}", pair.window, slow, healthy, *ranks)


def build_difference_table(
    name: str, window: str, slow: ChromeTrace, healthy: ChromeTrace, slow_rank: int, healthy_rank: int
) -> Table:
    """Return the table *name* of the operators that take *slow* longer than *healthy*, the largest difference first."""
    compared = compare_traces(slow, healthy)
    slow_name, healthy_name = f"rank {slow_rank}", f"rank {healthy_rank}"
    return make_table(
        name,
        f"What {slow_name} does more than {healthy_name}, a step ({window})",
        (
            "operator",
            ("more", "ms", f"{slow_name} less {healthy_name}"),
            (slow_name, "ms", "self time / steps traced"),
            (healthy_name, "ms", "self time / steps traced"),
            f"calls, {slow_name}",
            f"calls, {healthy_name}",
        ),
        (
            (
                shorten_name(change.name, NARROW),
                *(seconds * MILLI for seconds in (change.more_s, change.first_s, change.second_s)),
                change.first_calls,
                change.second_calls,
            )
            for change in compared.changes[:TOP]
        ),
        note=_build_note(compared, slow_name, healthy_name),
    )


def shorten_name(name: str, longest: int = LONGEST) -> str:
    """Return a long *name* without its middle: a table must leave room for its numbers."""
    return name if len(name) <= longest else f"{name[: longest - 15]}...{name[-12:]}"


def _build_note(compared: TraceDifference, slow_name: str, healthy_name: str) -> str:
    slow_steps = count_words(compared.first_steps, "step")
    healthy_steps = count_words(compared.second_steps, "step")
    left = len(compared.changes) - TOP
    left_out = f" {count_words(left, 'smaller difference')} left out." if left > 0 else ""
    return f"{slow_steps} of {slow_name}, {healthy_steps} of {healthy_name}.{left_out}"
