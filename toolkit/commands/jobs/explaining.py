"""Explains the state of a job from its folder: the record that `toolkit why`, `report` and `describe` show."""

import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from toolkit import files, folders
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.commands.jobs.ending import (
    MESSAGE,
    describe_cause,
    describe_host,
    has_debugger_files_alone,
    has_unreadable_outcome,
    replace_host_paths,
)
from toolkit.commands.jobs.evidence import find_evidence
from toolkit.job.cause import Cause
from toolkit.job.explanation import Explanation, choose_action, describe_culprit, group_names
from toolkit.job.report import REPORT
from toolkit.job.stuck import advise
from toolkit.metrics.file import decoded as decode_samples
from toolkit.metrics.sample import json_value
from toolkit.series.finding import Finding
from toolkit.series.findings import read as read_findings

METRICS_TAIL_BYTES = 65_536
MOST_METRICS = 2
# How the words about a host begin that had not failed by itself.
HEALTHY = ("was healthy", "was stopped", "lost ", "ended with it", "waited for")


def explain(job: JobData, *, now_s: float) -> Explanation:
    """Return why *job* is in its state. *now_s*: seconds since the epoch."""
    cause = job.outcome.cause if job.outcome is not None and job.status != "running" else Cause()
    vanished = any(host.name == job.failed_host and host.status == "vanished" for host in job.hosts)
    host = "" if job.failed_host == "host 1" else job.failed_host
    if not host and job.outcome is not None and job.status != "succeeded":
        host = job.outcome.cause_host
    failed = job.status in ("failed", "unfinished")
    culprit = _describe_culprit(job, cause, host, vanished=vanished) if failed else ""
    return Explanation(
        job=job.name,
        folder=str(job.folder),
        state=job.status,
        exit_code=None if job.status == "running" else job.exit_code,
        kind=cause.kind,
        blame=cause.blame,
        cause=_describe(job, now_s) if job.status in ("succeeded", "running") else _describe_end(job, cause),
        next_action=_choose_action(job, cause, vanished=vanished),
        culprit=culprit,
        host=host if failed else "",
        rank=cause.rank if failed and not vanished else None,
        evidence=None if job.status == "succeeded" else find_evidence(job, cause, host),
        healthy=_describe_healthy(job, host, cause),
        look=tuple(_list_places(job, host)),
    )


def _describe(job: JobData, now_s: float) -> str:
    """Return what a job does that runs, or has ended well, with its most costly finding."""
    if job.status == "running" and not job.hosts:
        return "It is starting: no host has begun yet."
    hosts = f"{len(job.hosts)} host{'' if len(job.hosts) == 1 else 's'}"
    end_s = now_s if job.status == "running" else job.end_s
    span = f" for {end_s - job.start_s:.1f} s" if job.start_s is not None and end_s is not None else ""
    waits = job.waits_since_s is not None
    event = "waits for new hosts" if waits else "runs" if job.status == "running" else "ran"
    ending = "" if job.status == "running" else "; every host ended with 0"
    restarts = f", with {len(job.restarts)} restart{'' if len(job.restarts) == 1 else 's'}" if job.restarts else ""
    findings = [finding for host in job.hosts for finding in _read_findings(host)]
    worst = max(findings, key=lambda finding: finding.lost_s or 0.0, default=None)
    found = f" Finding {worst.rule}: {job.mask(worst.text)}" if worst is not None else ""
    return f"It {event} on {hosts}{span}{restarts}{ending}.{found}"


def _describe_end(job: JobData, cause: Cause) -> str:
    """Return the cause of the end; where that is only what a process printed last, how it ended stands before it."""
    text = describe_cause(job)
    is_output = cause.process and not cause.traceback and not cause.is_early_exit and not job.stopped_by
    end = cause.process_end.partition("; this host")[0]
    if not is_output or not end.startswith("ended with code") or end in text:
        return text
    return f"{cause.process} {end}; it last said: {text}"


def _read_findings(host: HostData) -> tuple[Finding, ...]:
    try:
        return read_findings(host.monitor / "findings.jsonl")
    except OSError:
        return ()  # A note of the job names it.


def _choose_action(job: JobData, cause: Cause, *, vanished: bool) -> str:
    if job.status == "running":
        follow = f"Follow it: toolkit attach {_name_for_commands(job)}. " if _is_of_toolkit_run(job) else ""
        return f"{follow}Its page while it runs: toolkit report {_name_for_commands(job)}"
    if job.status == "unfinished" and has_debugger_files_alone(job):
        return "Ask the platform: its description of the job has the status and the reason of a failure."
    if job.status == "unfinished" and any(map(has_unreadable_outcome, job.hosts)):
        return "Read the end of the job's log; if another version of the toolkit wrote the file, ask that one."
    if vanished:
        return (
            "Find what killed the host (the machine's kernel log, the orchestrator's events), then start the job again."
        )
    if cause.kind == "Hang" and not cause.advice:
        stacks = {host.name: host.outcome.stuck_ranks for host in job.hosts if host.outcome is not None}
        cause = replace(cause, advice=replace_host_paths(job, advise(stacks)))
    cause = replace(cause, message=replace_host_paths(job, cause.message))
    return job.mask(choose_action(job.status, job.exit_code, cause))


def _describe_culprit(job: JobData, cause: Cause, host: str, *, vanished: bool) -> str:
    if vanished:
        return f"host {host}"
    if job.outcome is None or job.outcome.status == "succeeded":
        match = MESSAGE.search(job.reason)
        return match["extra"] if match and match["extra"] else f"host {host}" if host else ""
    return job.mask(describe_culprit(cause, host))


def _describe_healthy(job: JobData, host: str, cause: Cause) -> str:
    """Return what had not failed: the other hosts, the other ranks of the host, the last metrics before the end."""
    if job.status == "succeeded":
        return ""
    parts: list[str] = []
    by_words: dict[str, list[str]] = {}
    for other in job.hosts:
        if other.name != host and len(job.hosts) > 1:
            words = job.mask(describe_host(job, other)).partition("; host ")[0]
            if words.startswith(HEALTHY):
                by_words.setdefault(words, []).append(other.name)
    for words, names in by_words.items():
        parts.append(f"{group_names(names)} {words}")
    ranks = [
        end.rank
        for end in (job.outcome.exits if job.outcome is not None else ())
        if end.rank is not None and end.rank != cause.rank and (end.signalled or end.ok)
    ]
    if job.status == "failed" and cause.rank is not None and ranks and job.outcome is not None:
        only = "rank" if len(ranks) == 1 else "ranks"
        parts.append(f"{only} {group_names(map(str, sorted(ranks)))} of {job.outcome.cause_host or 'its host'}")
    last = _describe_last_metrics(job, host, cause)
    if last:
        parts.append(last)
    return "; ".join(parts)


def _describe_last_metrics(job: JobData, host: str, cause: Cause) -> str:
    """Return the last values of a few metrics, of the culprit's host where it has any: how far the training was."""
    for candidate in sorted(job.hosts, key=lambda one: one.name != host):
        try:
            with files.opened(candidate.metrics) as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - METRICS_TAIL_BYTES))
                samples = list(decode_samples(file.read(METRICS_TAIL_BYTES).splitlines(keepends=True)))
        except OSError:
            continue  # It captured nothing.
        last = {sample.name: sample for sample in samples}
        if not last:
            continue
        shown = ", ".join(f"{name} {json_value(sample.value)}" for name, sample in list(last.items())[-MOST_METRICS:])
        at_s = max(sample.time_s for sample in last.values())
        before_s = cause.failed_ns / 1e9 - at_s if cause.failed_ns else -1.0
        when = f", {before_s:.1f} s before the failure" if 0 <= before_s < 1e6 else ""
        return f"last metrics {shown}{when}"
    return ""


def _list_places(job: JobData, host: str) -> Iterator[str]:
    """Yield where to read more: the report, then the files of the culprit's host, those that are there."""
    if job.status != "running":
        yield f"toolkit report {_name_for_commands(job)}"
    for one in sorted(job.hosts, key=lambda one: one.name != host)[:1]:
        if one.outcome is not None:
            yield _below(job, str(one.outcome_file))
        yield from (_below(job, str(log)) for log in one.logs[:1])
        if folders.is_dir(one.output / "data" / "stacks", folders.named_elsewhere):
            yield _below(job, str(one.output / "data" / "stacks"))


def _below(job: JobData, path: str) -> str:
    return path.removeprefix(f"{job.folder}/")


def _name_for_commands(job: JobData) -> str:
    """Return what commands take for *job*: its name, if its folder has it, too, else the folder. A copy has the name of
    a job that is elsewhere, and a container's folder is no name."""
    return shlex.quote(job.name if _is_of_toolkit_run(job) and job.folder.name == job.name else str(job.folder))


def _is_of_toolkit_run(job: JobData) -> bool:
    return folders.is_file(job.folder / REPORT, folders.named_elsewhere)
