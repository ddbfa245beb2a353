"""Builds the first screen: how the job ended, the cause, the rank and host, and what to do about it."""

import re
from collections import Counter

from toolkit.commands.jobs.data import HostData, JobData
from toolkit.commands.report.model import Block, Cell, Lines, Table, Tone, Words, make_table
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import count_words, first_line, format_duration, format_utc
from toolkit.job.report import Interruption, seconds_of, spot_words
from toolkit.series.debugger_names import files_of

TONES: dict[str, Tone] = {
    "succeeded": "good",
    "failed": "bad",
    "stopped": "warn",
    "running": "plain",
    "unfinished": "bad",
    "vanished": "bad",
}
TRACEBACK_LINES = 30
# SecondaryStatus of DescribeTrainingJob.
LIMITS = {
    "MaxRuntimeExceeded": "the job reached its time limit (MaxRuntimeInSeconds): ",
    "MaxWaitTimeExceeded": "the job reached its limit of training and waiting together (MaxWaitTimeInSeconds): ",
}
_MESSAGE = re.compile(r'ErrorMessage "(?P<text>.*?)"(?:\nExtraInfo "(?P<extra>.*?)")?(?:\nCommand |\n\n|\Z)', re.DOTALL)
UNFINISHED = (
    "The job left no report and does not run any more: its container, its machine, or `toolkit run` itself was killed."
)
# A copy of profiler-output, as S3 has it.
DEBUGGER_ALONE = "Only SageMaker Debugger's files of this job are here, so that how it ended is not known."


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "outcome"."""
    job = material.job
    blocks: list[Block] = []
    if job.status not in ("succeeded", "running"):
        blocks.append(_build_cause(job))
        blocks += _build_place(job)
    blocks += _build_times(material)
    blocks.append(_build_hosts_table(job))
    blocks += _build_interruptions(material)
    blocks += _build_restarts(material)
    traceback = job.outcome.cause.traceback if job.outcome and job.status != "succeeded" else ""
    if traceback.strip():
        lines = job.mask(traceback).strip("\n").splitlines()
        cut = lines[-TRACEBACK_LINES:]
        title = "Traceback" if len(cut) == len(lines) else f"Traceback, its last {len(cut)} of {len(lines)} lines"
        blocks.append(Lines(id="traceback", title=title, lines=tuple(cut)))
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


def describe_cause(job: JobData) -> str:
    """Return the cause of the job's end, as completely as it is known."""
    vanished = [host.name for host in job.hosts if host.status == "vanished"]
    if job.status == "failed" and job.failed_host in vanished:
        return f"Host {job.failed_host} vanished: it was killed with everything that ran on it."
    outcome = job.outcome
    if outcome is not None and outcome.status != "succeeded" and (outcome.cause.message or outcome.plugin_failure_text):
        limit = LIMITS.get(job.stopped_by, "")
        return _replace_host_paths(job, job.mask(limit + (outcome.cause.message or outcome.plugin_failure_text)))
    if job.reason:
        match = _MESSAGE.search(job.reason)
        return match["text"] if match else job.reason.partition(": ")[2] or job.reason
    if job.status == "stopped":
        return f"The platform stopped the job ({job.stopped_by})." if job.stopped_by else "The job was stopped."
    if job.status == "unfinished":
        return DEBUGGER_ALONE if _has_debugger_files_alone(job) else UNFINISHED
    return next((job.mask(host.cause) for host in job.hosts if host.cause), "Nothing says why.")


def name_culprit(job: JobData) -> str:
    """Return "rank 1 of host algo-2", "host algo-2", or "" where no one is named."""
    host = "" if job.failed_host in ("", "host 1") else job.failed_host
    if any(job_host.name == host and job_host.status == "vanished" for job_host in job.hosts):
        return ""
    outcome = job.outcome
    process = ""
    if outcome is not None and outcome.status == "failed":
        process = f"rank {outcome.cause.rank}" if outcome.cause.rank is not None else outcome.cause.process
    if process and host:
        return f"{process} of host {host}"
    return process or (f"host {host}" if host else "")


def _replace_host_paths(job: JobData, text: str) -> str:
    """Return *text* with /opt/ml for a simulated host's folder: shorter, and as the script's author knows it."""
    for host in job.hosts:
        for folder in dict.fromkeys((host.output.parent, host.output.parent.resolve())):  # It may lie behind a link.
            text = text.replace(str(folder), "/opt/ml")
    return text


def _has_debugger_files_alone(job: JobData) -> bool:
    if job.status != "unfinished" or not job.hosts:
        return False
    return all(files_of(host.output) and not host.is_measured for host in job.hosts)


def _build_cause(job: JobData) -> Words:
    advice = job.outcome.cause.advice if job.outcome else ""
    if _has_debugger_files_alone(job):
        advice = "The platform's description of the job has its status and the reason of a failure."
    elif job.status == "unfinished" and not advice:
        advice = (
            "Look for what killed it: the machine's kernel log (dmesg) for out of memory, the orchestrator's events "
            "for an eviction or a lost node."
        )
    return Words(name="Cause", text=describe_cause(job), tone=TONES[job.status], advice=advice)


def _build_place(job: JobData) -> list[Block]:
    outcome = job.outcome
    blocks: list[Block] = []
    if any(host.name == job.failed_host and host.status == "vanished" for host in job.hosts):
        blocks.append(Words(name="Where", text=f"host {job.failed_host}"))
    elif outcome is None or outcome.status == "succeeded":
        match = _MESSAGE.search(job.reason)
        if match and match["extra"]:
            blocks.append(Words(name="Where", text=match["extra"]))
    else:
        cause = outcome.cause
        rank = f"rank {cause.rank}" if cause.rank is not None else cause.process
        if cause.rank is not None and cause.local_rank is not None:
            rank += f" (local rank {cause.local_rank})"
        pid = f"pid {cause.pid}" if cause.pid is not None else ""
        place = ", ".join(filter(None, (f"host {outcome.cause_host}" if outcome.cause_host else "", rank, pid)))
        place_and_end = ": ".join(filter(None, (place, cause.process_end)))
        if cause.identical_failures:
            place_and_end += f"; {count_words(cause.identical_failures, 'more rank')} with the same traceback"
        if place_and_end:
            blocks.append(Words(name="Where", text=job.mask(place_and_end)))
    if job.exit_code is not None:
        kind = f" ({outcome.cause.kind})" if outcome is not None and outcome.cause.kind else ""
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
        ((host.name, host.status, host.exit_code, job.mask(_describe_host(host))) for host in job.hosts),
    )


def _describe_host(host: HostData) -> str:
    """Return what happened on *host* itself, "" if that is all its status says."""
    if host.cause:
        return host.cause
    outcome = host.outcome
    if outcome is None or outcome.status == "succeeded":
        return ""
    if outcome.this_host_end:
        return outcome.this_host_end
    cause = outcome.cause
    return f"{cause.process} {cause.process_end}".strip() if cause.process_end else first_line(cause.message)


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
            _replace_host_paths(job, job.mask(first_line(restart.message))),
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
