"""Finds the line that shows the cause of a job's end, in its logs, else in the files that `train` wrote of the end."""

import re
from collections.abc import Iterator
from pathlib import Path

from toolkit import files, folders
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.commands.jobs.logs import clean_line
from toolkit.job.cause import Cause
from toolkit.job.explanation import LogLine
from toolkit.job.report import REPORT
from toolkit.masking.text import MASK

MOST_BYTES = 4 * 1024 * 1024  # Of a log's end, which is searched.
MOST_LOGS = 8
MOST_LINE = 1000
LEAST_WORDS = 8  # Characters of a text that is looked for: shorter ones stand anywhere.
_PLACE = re.compile(r"\s*\(at [^()]*\)\s*$")
# A text of a report that is not empty, as far as MOST_LINE bytes of it.
_MESSAGE = re.compile(rb'"message":\s*"(?:[^"\\]|\\.){1,1000}"?')
_REASON = re.compile(rb'"failure_reason":\s*"(?:[^"\\]|\\.){1,1000}"?')
_TEXT = re.compile(rb'ErrorMessage "[^\n]{1,1000}|\S[^\n]{0,1000}')
_LAST_SAID = re.compile(r"; it last said: ", re.DOTALL)


def find_evidence(job: JobData, cause: Cause, host: str) -> LogLine | None:
    """Return the line that shows *cause*, None if no file of the job has one. *host*: of the culprit."""
    hosts = sorted(job.hosts, key=lambda one: one.name != host)
    if job.status in ("running", "unfinished") and not cause.message:
        return _find_last_line(job, hosts)
    if cause.kind == "Hang" and (stack := _find_stack_line(job, hosts)) is not None:
        return stack
    logs = [log for one in hosts for log in one.logs][:MOST_LOGS]
    contents = [(log, *end) for log in logs if (end := _read_end(log)) is not None]
    for words in _list_words(cause, job.reason):
        for path, start, content in contents:
            if (offset := _find(content, words.encode())) is not None:
                return _make_line(job, path, start, content, offset)
    return _find_in_reports(job, hosts)


def _list_words(cause: Cause, reason: str) -> Iterator[str]:
    """Yield texts of which the line has one, the most telling first."""
    message, *said = _LAST_SAID.split(cause.message, maxsplit=1)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    end = cause.process_end.partition("; this host")[0]
    first = [_PLACE.sub("", lines[0])] if lines else []
    candidates = [*first, end] if cause.traceback or said else [*lines[-1:], *first, end]
    candidates += [text.splitlines()[-1].strip() for text in said if text.strip()]
    candidates += [re.split(r"[;:(]", text)[0].strip() for text in first]
    candidates += [re.split(r"[;:(]", reason)[0].strip()]
    for candidate in candidates:
        words = max(candidate.split(MASK), key=len).strip()
        if len(words) >= LEAST_WORDS:
            yield words[:200]


def _find(content: bytes, words: bytes) -> int | None:
    """Return where the last line with *words* is in *content*: a line of the script, else one of `train`."""
    offset, of_train = len(content), None
    while (offset := content.rfind(words, 0, offset)) >= 0:
        start = content.rfind(b"\n", 0, offset) + 1
        if b"[toolkit] " not in content[start:offset] and b'ErrorMessage "' not in content[start:offset]:
            return offset
        of_train = offset if of_train is None else of_train
        offset = start
        if not offset:
            break
    return of_train


def _find_last_line(job: JobData, hosts: list[HostData]) -> LogLine | None:
    for one in hosts:
        for log in one.logs:
            end = _read_end(log)
            if end is not None and (text := end[1].rstrip(b"\r\n ")):
                return _make_line(job, log, end[0], end[1], len(text) - 1)
    return _find_in_reports(job, hosts)


def _find_stack_line(job: JobData, hosts: list[HostData]) -> LogLine | None:
    """Return the line of the first stack, of a rank that works while others wait, that is in the user's own code."""
    for one in hosts:
        stuck = one.outcome.stuck_ranks if one.outcome is not None else ()
        for rank in sorted(stuck, key=lambda rank: rank.activity == "waits"):
            words = f'{rank.file}", line {rank.line}'.encode()
            name = rank.process.replace(" ", "-")
            for path in folders.matching(one.output / "data" / "stacks", f"*{name}.txt", folders.named_elsewhere):
                end = _read_end(path)
                if rank.file and end is not None and (offset := end[1].find(words)) >= 0:
                    return _make_line(job, path, *end, offset)
    return None


def _find_in_reports(job: JobData, hosts: list[HostData]) -> LogLine | None:
    """Return the line of outcome.json, failure or job.json that says why, None if none was written."""
    reports = [
        (path, pattern)
        for one in hosts
        for path, pattern in ((one.outcome_file, _MESSAGE), (one.output / "failure", _TEXT))
    ]
    for path, pattern in (*reports, (job.folder / REPORT, _REASON)):
        end = _read_end(path)
        if end is not None and (match := pattern.search(end[1])) is not None:
            return _make_record(job, path, match[0], end[0] + match.start())
    return None


def _read_end(path: Path) -> tuple[int, bytes] | None:
    """Return the end of the file at *path* and where it begins in the file, None if it cannot be read."""
    try:
        with files.opened(path) as file:
            start = max(0, file.seek(0, 2) - MOST_BYTES)
            file.seek(start)
            return start, file.read(MOST_BYTES)
    except OSError:
        return None  # A note of the job names it.


def _make_line(job: JobData, path: Path, start: int, content: bytes, offset: int) -> LogLine:
    """Return the line of *content* in which *offset* is, from *offset* on if it is a line without end; *start*: where
    *content* begins in the file *path*."""
    begins = content.rfind(b"\n", 0, offset) + 1
    if offset - begins > MOST_LINE:
        begins = offset
    ends = content.find(b"\n", offset)
    return _make_record(job, path, content[begins : ends if ends >= 0 else len(content)], start + begins)


def _make_record(job: JobData, path: Path, line: bytes, offset: int) -> LogLine:
    text = clean_line(job.mask(line[:MOST_LINE].decode("utf-8", "replace"))).strip()
    return LogLine(text=text, file=str(path).removeprefix(f"{job.folder}/"), offset_bytes=offset)
