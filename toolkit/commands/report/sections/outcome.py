"""Builds the first screen: how the job ended, the cause, the rank and host, and what to do about it."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from toolkit import folders
from toolkit.commands.jobs.data import JobData
from toolkit.commands.jobs.ending import describe_cause, describe_host, name_culprit, replace_host_paths
from toolkit.commands.jobs.explaining import explain
from toolkit.commands.jobs.folders import in_order
from toolkit.commands.jobs.logs import tail
from toolkit.commands.report.model import Block, Cell, Lines, Table, Tone, Words, make_table
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import count_words, first_line, format_duration, format_utc
from toolkit.job.explanation import list_rows
from toolkit.job.report import Interruption, seconds_of, spot_words
from toolkit.job.stuck import name_ranks

TONES: dict[str, Tone] = {
    "succeeded": "good",
    "failed": "bad",
    "stopped": "warn",
    "running": "plain",
    "unfinished": "bad",
    "vanished": "bad",
}
TRACEBACK_LINES = 30
MOST_STACKS, STACK_FILE_LINES, STACK_LINES = 8, 2000, 40
# The head of each stack by faulthandler ("Current thread 0x... (most recent call first):") and py-spy 0.4 ("Thread 71
# (idle): "MainThread""), and that of the main thread.
THREAD = re.compile(r"(Current thread|Thread) ")
MAIN_THREAD = re.compile(r"^Current thread|MainThread")


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "outcome"."""
    job = material.job
    blocks: list[Block] = []
    if job.status not in ("succeeded", "running"):
        blocks += _build_explanation(material)
    blocks += _build_times(material)
    blocks.append(_build_hosts_table(job))
    blocks += _build_interruptions(material)
    blocks += _build_restarts(material)
    traceback = job.outcome.cause.traceback if job.outcome and job.status != "succeeded" else ""
    if traceback.strip():
        lines = replace_host_paths(job, job.mask(traceback)).strip("\n").splitlines()
        cut = lines[-TRACEBACK_LINES:]
        title = "Traceback" if len(cut) == len(lines) else f"Traceback, its last {len(cut)} of {len(lines)} lines"
        blocks.append(Lines(id="traceback", title=title, lines=tuple(cut)))
    blocks += _build_collectives(job)
    blocks += _build_stacks(job)
    blocks += [Words(name="Note", text=job.mask(note), tone="warn") for note in _list_notes(job)]
    return blocks


def summarise(material: Material) -> str:
    """Return what happened to the job in one sentence."""
    job = material.job
    span = _describe_span(material)
    if job.status == "succeeded":
        who = "The job" if len(job.hosts) == 1 else f"Each of {len(job.hosts)} hosts"
        counts = ((len(job.restarts), "restart"), (len(job.interruptions), "spot interruption"))
        interrupted = " and ".join(count_words(count, word) for count, word in counts if count)
        return f"{who} ended with 0{f' after {span}' if span else ''}{f', with {interrupted}' if interrupted else ''}."
    if job.waits_since_s is not None:
        return f"The job was interrupted, and waits for new hosts{f', {span} after its start' if span else ''}."
    if job.status == "running":
        return f"The job runs on {count_words(len(job.hosts), 'host')}{f', for {span} so far' if span else ''}."
    who, cause = name_culprit(job), first_line(describe_cause(job)).rstrip(".")
    if job.status == "stopped" and who and "stopped by" in cause:
        who = ""
    at_s = material.failed_s
    when = (
        f"{format_duration(at_s - job.start_s)} after the start" if at_s and job.start_s and at_s >= job.start_s else ""
    )
    opening = ", ".join(filter(None, (who, when)))
    if job.status == "stopped" and not opening:
        return f"{cause[:1].upper()}{cause[1:]}."
    return f"{opening[:1].upper()}{opening[1:]}: {cause}." if opening else f"{cause}."


def _build_explanation(material: Material) -> list[Block]:
    """Return what `toolkit why` says, row by row, uncut."""
    job = material.job
    explanation = explain(job, now_s=material.now_s)
    elsewhere = tuple(place for place in explanation.look if not place.startswith("toolkit report"))
    rows = dict(list_rows(replace(explanation, look=elsewhere)))
    advice = rows.pop("What to do", "")
    blocks: list[Block] = [Words(name="Cause", text=rows.pop("Cause"), tone=TONES[job.status], advice=advice)]
    blocks += [Words(name=name, text=text) for name, text in rows.items()]
    if job.exit_code is not None:
        kind = f" ({explanation.kind})" if explanation.kind else ""
        blocks.append(Words(name="Exit code", text=f"{job.exit_code}{kind}"))
    return blocks


def _build_times(material: Material) -> list[Block]:
    job = material.job
    if job.start_s is None:
        return []
    text = f"started {format_utc(job.start_s)}"
    if material.failed_s is not None and material.failed_s >= job.start_s:
        after = format_duration(material.failed_s - job.start_s)
        text += f", failed {format_utc(material.failed_s)} ({after} after the start)"
    if job.end_s is not None:
        after = format_duration(job.end_s - job.start_s)
        text += f", ended {format_utc(job.end_s)} ({after} after the start)"
    elif job.status == "running":
        text += f", has run for {format_duration(material.now_s - job.start_s)}"
    return [Words(name="Time", text=text)]


def _describe_span(material: Material) -> str:
    if material.start_s is None or material.end_s is None:
        return ""
    return format_duration(material.end_s - material.start_s)


def _build_hosts_table(job: JobData) -> Table:
    return make_table(
        "hosts",
        "Hosts",
        ("host", "status", "exit code", "on this host"),
        ((host.name, host.status, host.exit_code, job.mask(describe_host(job, host))) for host in job.hosts),
    )


def _build_collectives(job: JobData) -> list[Block]:
    """Return, of a job that hung, what the ranks of each process group did last: the call that all have completed, and
    the next one of each."""
    rows: list[tuple[Cell, ...]] = []
    for group in job.outcome.collectives if job.outcome is not None else ():
        common = f"{group.common_operation} #{group.common_number}" if group.common_number else "not known"
        for place in group.places:
            call = f"{place.operation} #{place.number}{f' of {place.payload}' if place.payload else ''}"
            line = f"{replace_host_paths(job, job.mask(place.file))}:{place.line}" if place.file else ""
            state = "completed" if place.is_complete else "waits in it"
            rows.append((group.group, common, name_ranks(place.ranks), state, call, line))
        for ranks, state in ((group.absent, "never reached it"), (group.unread, "did not answer")):
            if ranks:
                rows.append((group.group, common, name_ranks(ranks), state, "", ""))
    columns = ("process group", "completed by all", "ranks", "state", "newest collective", "line")
    return [make_table("collectives", "Collectives in the hang", columns, rows)] if rows else []


def _build_stacks(job: JobData) -> list[Block]:
    """Return the stacks that the ranks of a job wrote when it hung, those of the host of the cause first."""
    hosts = sorted(job.hosts, key=lambda host: host.name != job.failed_host)
    paths = [
        (host, path)
        for host in hosts
        for path in sorted(
            folders.matching(host.output / "data" / "stacks", "*.txt", folders.named_elsewhere),
            key=lambda path: in_order(path.stem),
        )
    ]
    blocks: list[Block] = []
    for host, path in paths[:MOST_STACKS]:
        try:
            lines = choose_thread(tail(path, STACK_FILE_LINES, job.mask))[:STACK_LINES]
        except OSError as error:
            lines = (f"({path.name} cannot be read: {error.strerror})",)
        shown = tuple(replace_host_paths(job, line) for line in lines)
        rank = path.stem.removeprefix(f"{host.name}-").replace("rank-", "rank ")
        blocks.append(Lines(id=f"stack-{path.stem}", title=f"Stack of {rank} of {host.name}", lines=shown))
    if len(paths) > MOST_STACKS:
        more = f"The stacks of {len(paths) - MOST_STACKS} more ranks are in output/data/stacks of their hosts."
        blocks.append(Words(text=more))
    return blocks


def choose_thread(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the stack of the thread that trains out of those of all threads, as faulthandler or py-spy writes them;
    all *lines* if no thread can be told from the others."""
    starts = [number for number, line in enumerate(lines) if THREAD.match(line)]
    for start, end in pairwise([*starts, len(lines)]):
        if MAIN_THREAD.search(lines[start]):
            return tuple(line for line in lines[start:end] if line.strip())
    return tuple(lines)


def _build_interruptions(material: Material) -> list[Block]:
    """Return what the spot interruptions of the job were, and what they saved and cost."""
    job = material.job
    if not job.managed_spot or job.was_interrupted or material.start_s is None or material.end_s is None:
        return []
    training_s = (material.end_s - material.start_s) * len(job.hosts)
    words = spot_words(round(training_s, 3), round(job.billable(material.now_s) or 0.0, 3))
    blocks: list[Block] = [Words(name="Managed spot training", text="; ".join(words))]
    if not job.interruptions:
        return blocks
    rows = tuple(
        _build_interruption_row(number, interruption) for number, interruption in enumerate(job.interruptions, 1)
    )
    columns = (
        "number",
        "SIGTERM",
        ("training", "s", "for how long the hosts of this start ran"),
        ("checkpoint's age", "s", "from the last change of a checkpoint to the hosts' end"),
        ("pause", "s", "from the hosts' end to the next start"),
        "exit codes",
        "kept in",
    )
    note = (
        "Metrics and where the time went are of all starts, everything else is of the last one. An earlier one has a "
        "page of its own: toolkit report JOBDIR/interrupted/1"
    )
    return [
        *blocks,
        make_table("interruptions", "Spot interruptions", columns, rows, note=note),
    ]


def _build_interruption_row(number: int, interruption: Interruption) -> tuple[Cell, ...]:
    stopped_s, ended_s, saved_s, resumed_s = map(
        seconds_of, (interruption.time, interruption.end_time, interruption.checkpoint_time, interruption.resumed_time)
    )
    codes = Counter(host.exit_code for host in interruption.hosts.values())
    return (
        number,
        None if stopped_s is None else format_utc(stopped_s),
        interruption.training_seconds,
        None if saved_s is None or ended_s is None else max(ended_s - saved_s, 0.0),
        None if resumed_s is None or ended_s is None else max(resumed_s - ended_s, 0.0),
        ", ".join(
            f"{code} ({count_words(count, 'host')})" if len(codes) > 1 else str(code) for code, count in codes.items()
        ),
        interruption.folder,
    )


def _build_restarts(material: Material) -> list[Block]:
    job = material.job
    if not job.restarts:
        return []
    rows = tuple(
        (
            restart.attempt,
            format_utc(restart.failed_ns / 1e9) if restart.failed_ns else None,
            restart.host,
            restart.rank if restart.rank is not None else restart.process,
            restart.exit_code,
            replace_host_paths(job, job.mask(first_line(restart.message))),
        )
        for restart in job.restarts
    )
    names = ("attempt", "failure before it", "host", "rank", "exit code", "cause")
    return [make_table("restarts", "Restarts", names, rows)]


def _list_notes(job: JobData) -> list[str]:
    notes = list(job.notes)
    if job.outcome is not None:
        notes += [note for note in job.outcome.notes if note not in notes]
        if job.outcome.console_lost_bytes:
            notes.append(f"{job.outcome.console_lost_bytes} bytes of a host's output did not reach its console.")
    return notes
