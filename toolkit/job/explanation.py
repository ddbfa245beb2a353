"""Explains the end of a job in at most 2,000 bytes: the answer of `toolkit why`, the head of reports and messages.

Pure. The text has a line for each part, "NAME: value"; the JSON has the same parts, and all keys in every answer.
"""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal

import msgspec

from toolkit import exit_codes, paths
from toolkit.job.cause import Cause
from toolkit.patterns import lazy
from toolkit.records import Record, encode, meaning

LIMIT_BYTES = 2000
SCHEMA_VERSION: Final = 1
# The longest that each text may be where all are long; none alone may fill the answer.
_MOST = {"cause": 500, "next_action": 300, "culprit": 240, "healthy": 200, "look": 120, "folder": 160, "job": 80}
_MOST_EVIDENCE = {"text": 240, "file": 160}
_MOST_LOOK = 4
_LEAST = 24
_PLACE = lazy(r"\(at ([^()]+:\d+)(?: in [^()]*)?\)")
# Escape sequences, as colours, and control characters but the end of a line: a terminal would obey them.
_CONTROLS = lazy(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)|[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Where no known error says more: what to do, by the exit code.
BY_CODE = {
    exit_codes.INTERNAL_FAULT: "The fault is the toolkit's: keep this folder, and report it to its authors.",
    exit_codes.TEMPORARY_FAILURE: "Start the job again: code 75 asks for another try. If it fails in the same way, look"
    " at the host that is named.",
    exit_codes.MISCONFIGURED: "Correct what the cause names, then start the job again; `toolkit check` looks at a job"
    " before it starts.",
    exit_codes.NO_RETRY: "Do not start it again as it is: a log rule says that another try does not help.",
    exit_codes.TIMED_OUT: "Read the stacks of the ranks in output/data/stacks: the rank that does not wait for the"
    " others holds them up.",
}


class LogLine(Record, frozen=True, kw_only=True):
    """A line that shows the cause, and its place."""

    text: Annotated[str, meaning("the line, with secrets masked")]
    file: Annotated[str, meaning("the file, from `folder` on")]
    offset_bytes: Annotated[int, meaning("where the line begins in the file, in bytes")]


class Explanation(Record, frozen=True, kw_only=True):
    """The explanation of a job's state."""

    schema_version: Annotated[Literal[1], meaning("the version of this answer's format")] = SCHEMA_VERSION
    job: Annotated[str, meaning("the job's name")]
    folder: Annotated[str, meaning("the job's folder, or its storage address; empty: not known")] = ""
    state: Annotated[
        Literal["succeeded", "failed", "stopped", "running", "unfinished", "hanging", "restarting"],
        meaning(
            "the job's state; unfinished: it left no outcome and runs no more; hanging, restarting: of messages alone"
        ),
    ]
    exit_code: Annotated[int | None, meaning("the exit code of the job; null: it has none yet")] = None
    kind: Annotated[str, meaning("the kind of failure, as outcome.json has it; empty: none is known")] = ""
    blame: Annotated[str, meaning("who can mend it: user, job, platform or toolkit; empty: not known")] = ""
    cause: Annotated[str, meaning("why the job ended, or what it does")] = ""
    next_action: Annotated[str, meaning("what to do next")] = ""
    culprit: Annotated[str, meaning("the host and process that failed first, and how it ended; empty: no one is")] = ""
    host: Annotated[str, meaning("the host of the culprit; empty: not known")] = ""
    rank: Annotated[int | None, meaning("the rank of the culprit; null: it is no rank, or not known")] = None
    evidence: Annotated[LogLine | None, meaning("the line that shows the cause; null: no file has one")] = None
    healthy: Annotated[str, meaning("what had not failed: hosts, ranks, the last metric")] = ""
    look: Annotated[tuple[str, ...], meaning("where to read more: files below the folder, and commands")] = ()


def describe_culprit(cause: Cause, host: str) -> str:
    """Return who failed and how: "host algo-2, rank 3 (local rank 1), pid 71: killed by SIGKILL"."""
    rank = "" if cause.rank is None else f"rank {cause.rank}"
    if rank and cause.local_rank is not None:
        rank += f" (local rank {cause.local_rank})"
    names = (f"host {host}" if host else "", rank or cause.process, f"pid {cause.pid}" if cause.pid is not None else "")
    place = ": ".join(filter(None, (", ".join(filter(None, names)), cause.process_end)))
    if place and cause.identical_failures:
        more = cause.identical_failures
        place += f"; {more} more rank{'s' if more > 1 else ''} with the same traceback"
    return place


def choose_action(state: str, exit_code: int | None, cause: Cause) -> str:
    """Return what to do about *cause*: its advice, else what its exit code or its place calls for."""
    if cause.advice:
        return f"{cause.advice.rstrip('.')}."
    if state == "succeeded":
        return "Nothing: the model and the output are complete."
    if state == "stopped":
        return "Start the job again to go on from its last checkpoint, if it saved one."
    if cause.kind == "Hang":
        return BY_CODE[exit_codes.TIMED_OUT]
    if exit_code in BY_CODE and cause.blame != "user":
        return BY_CODE[exit_code]
    place = _PLACE.search(cause.message)
    if place:
        return f"Look at {place[1]}, which raised it; correct it, then start the job again."
    if cause.preempted or "signal 9" in cause.process_end:
        return (
            "Find who killed it: the machine's kernel log (dmesg), the orchestrator's events, or a person; then start"
            " the job again."
        )
    if "signal" in cause.process_end:
        return (
            "Read the stack that the process left in its log; the native code in it (CUDA, NCCL, an extension) crashed."
        )
    if exit_code in BY_CODE:
        return BY_CODE[exit_code]
    if state == "unfinished":
        return (
            "Look for what killed it: the machine's kernel log (dmesg) for out of memory, the orchestrator's events for"
            " an eviction or a lost node."
        )
    return "Read the last lines of the log of the culprit, and correct what they name."


def list_rows(explanation: Explanation) -> list[tuple[str, str]]:
    """Return (name, value) of each part that has a value, in the order of the text."""
    evidence = explanation.evidence
    line = f"{evidence.file}, byte {evidence.offset_bytes}: {evidence.text}" if evidence else ""
    rows = (
        ("Cause", explanation.cause),
        ("What to do", explanation.next_action),
        ("Culprit", explanation.culprit),
        ("Evidence", line),
        ("Healthy", explanation.healthy),
        ("Look", "; ".join(explanation.look)),
    )
    return [(name, value) for name, value in rows if value]


def write_text(explanation: Explanation) -> str:
    """Return *explanation* as lines of text, LIMIT_BYTES at most."""

    def write(fitted: Explanation) -> str:
        code = "" if fitted.exit_code is None else f", exit code {fitted.exit_code}"
        kind = f" ({fitted.kind})" if fitted.kind else ""
        head = f"{fitted.job}: {fitted.state.upper()}{code}{kind}"
        rows = [*list_rows(fitted), *([("Folder", fitted.folder)] if fitted.folder else [])]
        return "\n".join((head, *(f"{name}: {_in_one_line(value)}" for name, value in rows))) + "\n"

    return _fit(explanation, write)


def write_json(explanation: Explanation) -> str:
    """Return *explanation* as a JSON object in one line, LIMIT_BYTES at most."""
    return _fit(explanation, lambda fitted: encode(fitted).decode() + "\n")


def make_document(explanation: Explanation) -> dict[str, object]:
    """Return *explanation* as `write_json` has it, to be a part of another document."""
    document = json.loads(write_json(explanation))
    assert isinstance(document, dict)
    return document


def _fit(explanation: Explanation, write: Callable[[Explanation], str]) -> str:
    """Return what *write* makes of *explanation*, whose texts are cut only as far as the limit asks for, and hold no
    control characters."""
    plain = {
        name: _CONTROLS.sub("", getattr(explanation, name)) for name in ("cause", "next_action", "culprit", "healthy")
    }
    explanation = msgspec.structs.replace(explanation, **plain)
    text = write(explanation)
    if len(paths.shown_text(text).encode()) <= LIMIT_BYTES:
        return text
    share = 1.0
    while True:
        text = write(_cut(explanation, share))
        if len(paths.shown_text(text).encode()) <= LIMIT_BYTES or share < 0.05:
            return text
        share *= 0.8


def _cut(explanation: Explanation, share: float) -> Explanation:
    def shorten(text: str, most: int) -> str:
        room = max(int(most * share), _LEAST)
        return text if len(text) <= room else f"{text[: room - 3]}..."

    def shorten_path(path: str, most: int) -> str:
        room = max(int(most * share), _LEAST)
        return path if len(path) <= room else f"...{path[3 - room :]}"

    evidence = explanation.evidence
    return msgspec.structs.replace(
        explanation,
        **{name: shorten(getattr(explanation, name), _MOST[name]) for name in ("cause", "next_action", "culprit")},
        healthy=shorten(explanation.healthy, _MOST["healthy"]),
        job=shorten(explanation.job, _MOST["job"]),
        kind=shorten(explanation.kind, _MOST["job"]),
        host=shorten(explanation.host, _MOST["job"]),
        folder=shorten_path(explanation.folder, _MOST["folder"]),
        evidence=evidence
        and msgspec.structs.replace(
            evidence,
            text=shorten(evidence.text, _MOST_EVIDENCE["text"]),
            file=shorten_path(evidence.file, _MOST_EVIDENCE["file"]),
        ),
        look=tuple(shorten_path(place, _MOST["look"]) for place in explanation.look[:_MOST_LOOK]),
    )


def group_names(names: Iterable[str], most: int = 4) -> str:
    """Return *names* in a row, the first *most* of them and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _in_one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
