"""Builds the first section of a comparison: what was not the same in the jobs, besides their figures."""

from collections.abc import Sequence

from toolkit.commands.jobs.manifests import read_manifests
from toolkit.commands.report.compare.measured import ComparedJob
from toolkit.commands.report.model import Block, Words, make_table
from toolkit.job.drift import Difference, compare_jobs
from toolkit.records import Record

# Rows of one job: a person reads no more, and what changes a result most stands first.
MOST_ROWS = 40
MOST_NAMED = 4
COLUMNS = ("job", "what", "name", "before", "after")


class Drift(Record, frozen=True, kw_only=True):
    """The differences of several runs from one."""

    runs: tuple[tuple[str, tuple[Difference, ...]], ...] = ()
    """(label, differences) of each run that has a manifest, where the first run has one."""
    notes: tuple[str, ...] = ()
    """A sentence for each manifest that is missing or damaged; () if no run has any."""


def find_drift(first: ComparedJob, others: Sequence[ComparedJob]) -> Drift:
    """Return how the other runs of *first*, and those of each other side, differ from it by their manifests."""
    notes: list[str] = []
    runs = [*first.runs, *(run for side in others for run in side.runs)]
    manifests = [read_manifests(run.job, notes.append) for run in runs]
    pairs = zip(runs[1:], manifests[1:], strict=True)
    return Drift(
        runs=tuple((run.label, compare_jobs(manifests[0], of_run)) for run, of_run in pairs if manifests[0] and of_run),
        notes=tuple(dict.fromkeys(notes)) if any(manifests) else (),
    )


def describe_drift(drift: Drift) -> str:
    """Return the sentence that heads the page, "" if nothing differs or nothing is known."""
    differences = tuple(dict.fromkeys(difference for _, of_run in drift.runs for difference in of_run))
    if not differences:
        return ""
    names = [f"{difference.part} {difference.name}".strip() for difference in differences[:MOST_NAMED]]
    more = f"; {len(differences) - MOST_NAMED} more below" if len(differences) > MOST_NAMED else ""
    return f"Not the same: {'; '.join(names)}{more}."


def build_blocks(first: ComparedJob, drift: Drift) -> list[Block]:
    """Return the table of *drift*."""
    blocks: list[Block] = [Words(text=note, tone="warn") for note in drift.notes]
    rows: list[tuple[str, ...]] = []
    for label, differences in drift.runs:
        rows += [_make_row(label, difference) for difference in differences[:MOST_ROWS]]
        if len(differences) > MOST_ROWS:
            rows.append((label, "and", f"{len(differences) - MOST_ROWS} more", "", ""))
    if rows:
        note = (
            f"Against {first.label}, by manifest.json of each host. Of variables only digests are kept, and of secrets"
            " none. Names of jobs, folders, ports and terminals are left out."
        )
        blocks.append(make_table("drift-table", "Differences", COLUMNS, rows, note=note))
    elif drift.runs and not drift.notes:
        text = "Nothing, as far as manifests tell: source, channels, hyperparameters, packages, variables, machine."
        blocks.append(Words(text=text, tone="good"))
    return blocks


def _make_row(label: str, difference: Difference) -> tuple[str, ...]:
    hosts = f" (on {', '.join(difference.hosts)})" if difference.hosts else ""
    return label, difference.part, difference.name + hosts, difference.first, difference.second
