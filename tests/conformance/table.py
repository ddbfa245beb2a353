"""The verdict of a case on the two, and the page with all of them (docs/lab/conformance.md)."""

import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.conformance.running import ROOT, Seen

PAGE = ROOT / "docs/lab/conformance.md"
CONTRACT = ROOT / "docs/contract.md"
SAME, BETTER, DIFFERENT, NOT_YET, WORSE = "same", "better", "different", "not yet", "worse"


@dataclass(frozen=True)
class Case:
    """One thing to see of a job: `point` of the contract, what is seen (JSON), and what would be right.

    `right` None: what sagemaker-training does is right. `row` is the row of docs/contract.md that explains a difference
    on purpose; with `later` it is one that says "not yet".
    """

    point: int
    title: str
    job: str
    see: Callable[[Seen], Any]
    right: Callable[[Any], bool] | None = None
    row: int | None = None
    later: bool = False


def verdict(case: Case, theirs: Any, toolkit_value: Any) -> str:
    """Return what the two make of a case: worse is everything that nothing excuses."""
    if toolkit_value == theirs:
        return SAME
    if case.row is not None and case.later:
        return NOT_YET
    if case.row is not None:
        return DIFFERENT if case.right is None or case.right(toolkit_value) else WORSE
    is_better = case.right is not None and case.right(toolkit_value) and not case.right(theirs)
    return BETTER if is_better else WORSE


def rows_of_the_contract() -> dict[int, str]:
    """Return the rows of docs/contract.md by their number."""
    points = re.findall(r"^\| (\d+) \| (.*)$", CONTRACT.read_text(), re.MULTILINE)
    return {int(number): text for number, text in points}


def format_value(value: Any) -> str:
    """Return *value* as a cell of the table."""
    text = {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    text = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return text if len(text) <= 70 else text[:67] + "..."


def page(results: Sequence[tuple[Case, Any, Any]]) -> str:
    """Return the part of docs/lab/conformance.md that is written by scripts/conformance."""
    table, count = [], Counter[str]()
    for case, theirs, toolkit_value in results:
        outcome = verdict(case, theirs, toolkit_value)
        count[outcome] += 1
        label = f"{outcome} (row {case.row})" if outcome in (DIFFERENT, NOT_YET) else outcome
        toolkit_text = "as there" if outcome == SAME else format_value(toolkit_value)
        table.append(f"| {case.point} | {case.title} | {label} | {format_value(theirs)} | {toolkit_text} |")
    total = ", ".join(f"{count[name]} {name}" for name in (SAME, BETTER, DIFFERENT, NOT_YET, WORSE))
    head = ["| point | case | verdict | sagemaker-training 5.1.4 | this toolkit |", "|---|---|---|---|---|"]
    points = len({case.point for case, _, _ in results})
    counted = f"{len(table)} cases of {points} points: {total}."
    day, python = datetime.now(timezone.utc).date(), platform.python_version()
    ran = f"Run on {day} with Python {python} and Linux {platform.release()}, {platform.machine()}."
    return "\n".join([counted, ran, "", *head, *table, ""])


def write(path: Path, text: str) -> None:
    """Replace what stands below `<!-- table -->` in *path*."""
    head, mark, _ = path.read_text().partition("<!-- table -->\n")
    path.write_text(f"{head}{mark}{text}")
