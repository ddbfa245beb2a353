"""Builds the section "timeline": one list of all hosts' events, and a chart of the ranks that ran."""

from toolkit.commands.jobs.ending import describe_cause
from toolkit.commands.report.model import Axis, Block, Cell, Chart, Line, Words, make_table
from toolkit.commands.report.sections.findings import label_finding
from toolkit.commands.report.sections.marks import list_marks
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import first_line, format_duration, format_utc
from toolkit.diagnosis.folding import fold
from toolkit.job.outcome import Exit
from toolkit.job.report import seconds_of

MOST_EVENTS = 200
MOST_LINES = 32
MISSING = "Nothing says when the processes of this job began or ended: it left no outcome, metric or sample."
Event = tuple[float, str, str]


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "timeline"."""
    events = sorted(_list_events(material))
    if not events:
        return [Words(text=MISSING)]
    start_s = material.start_s if material.start_s is not None else events[0][0]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (format_utc(at_s), format_duration(at_s - start_s), host, material.job.mask(text))
        for at_s, host, text in _shorten_events(events)
    )
    names = ("time", "after the start", "host", "event")
    blocks: list[Block] = [make_table("events", "Events", names, rows)]
    return blocks + _build_running_chart(material, start_s)


def _list_events(material: Material) -> list[Event]:
    job = material.job
    events: list[Event] = []
    if material.start_s is not None:
        events.append((material.start_s, "", "the job begins"))
    for host in job.hosts:
        for process in host.outcome.exits if host.outcome else ():
            events += _list_process_events(process, host.name)
    for host_name, table in material.steps.items():
        events.append((float(table.end_s[0]), host_name, f"first step ends (rank {int(table.rank[0])})"))
        events.append(
            (
                float(table.end_s[-1]),
                host_name,
                f"last step ends (rank {int(table.rank[-1])}, step {int(table.step[-1])})",
            )
        )
    for restart in job.restarts:
        if restart.failed_ns:
            text = f"failure: {first_line(restart.message)}; attempt {restart.attempt} follows"
            events.append((restart.failed_ns / 1e9, restart.host, text))
    for number, interruption in enumerate(job.interruptions, 1):
        times = (interruption.time, "SIGTERM to all hosts"), (interruption.end_time, "all hosts have ended")
        for time, text in (*times, (interruption.resumed_time, "the job starts again, on new hosts")):
            if (at_s := seconds_of(time)) is not None:
                events.append((at_s, "", f"spot interruption {number}: {text}"))
    events += [
        (
            group.finding.start_s,
            "" if group.others else group.finding.host,
            f"finding: {label_finding(group, restarted=bool(job.restarts))}",
        )
        for group in fold(material.findings)
    ]
    if material.failed_s is not None:
        events.append((material.failed_s, job.failed_host, f"the job fails: {first_line(describe_cause(job))}"))
    if job.end_s is not None:
        events.append((job.end_s, "", f"the job ends ({job.status})"))
    return events


def _list_process_events(process: Exit, host_name: str) -> list[Event]:
    events: list[Event] = []
    if process.started_ns:
        events.append((process.started_ns / 1e9, host_name, f"{process.process} is started (pid {process.pid})"))
    if process.ended_ns:
        how = f"killed by signal {process.signal}" if process.signal else f"ended with code {process.code}"
        signalled = ", as train told it" if process.signalled else ""
        events.append((process.ended_ns / 1e9, host_name, f"{process.process} {how}{signalled}"))
    return events


def _shorten_events(events: list[Event]) -> list[Event]:
    """Return *events* without the middle of a very long list."""
    if len(events) <= MOST_EVENTS:
        return events
    half = MOST_EVENTS // 2
    left = len(events) - 2 * half
    return [*events[:half], (events[half][0], "", f"({left} more events)"), *events[-half:]]


def _build_running_chart(material: Material, start_s: float) -> list[Block]:
    lines = []
    for host in material.job.hosts[:MOST_LINES]:
        changes: list[tuple[float, int]] = []
        for process in host.outcome.exits if host.outcome else ():
            if process.rank is not None and process.started_ns and process.ended_ns:
                changes += [(process.started_ns / 1e9 - start_s, 1), (process.ended_ns / 1e9 - start_s, -1)]
        if changes:
            x, mean = [0.0], [0.0]
            for at_s, change in sorted(changes):
                x.append(at_s)
                mean.append(mean[-1] + change)
            lines.append(Line(name=host.name, x=tuple(x), mean=tuple(mean), source=f"outcome.json of host {host.name}"))
    if not lines:
        return []
    return [
        Chart(
            id="running-ranks",
            title="Running ranks",
            x=Axis(name="time since the start", unit="s", kind="elapsed"),
            y=Axis(name="ranks", low=0.0),
            lines=tuple(lines),
            marks=tuple(list_marks(material)),
            cursor="elapsed",
            formula="Ranks that were started and had not ended, of the last attempt.",
        )
    ]
