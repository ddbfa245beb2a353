"""Pure: makes job.json, the platform's report of a job, and the summary for the console."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from toolkit.commands.jobs.folders import in_order
from toolkit.commands.simulate.lifecycle import JobEnd, Lifecycle
from toolkit.exit_codes import TEMPORARY_FAILURE
from toolkit.job.outcome import Outcome
from toolkit.job.report import JobReport, interruption_text, spot_words
from toolkit.metrics.sample import Sample

REASON_CHARACTERS = 1024  # DescribeTrainingJob keeps the first 1,024 characters of output/failure.


def moment(seconds: float) -> str:
    """Return a time in seconds since the epoch as 2026-01-31T12:00:00.250Z."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def first_failure(lifecycle: Lifecycle, outcomes: Mapping[str, Outcome]) -> str:
    """Return the host that failed first, as far as the hosts' outcomes show; "" if none failed.

    A vanished host is always the cause. Otherwise the cause is the first host whose script failed by itself: a host
    that was stopped or lost a peer (exit code 75) only follows another one.
    """
    failures = [host for host in lifecycle.failures if host in lifecycle.vanished] or lifecycle.failures
    if not failures or failures[0] in lifecycle.vanished:
        return failures[0] if failures else ""
    reported = [host for host in failures if host in outcomes]
    self_failed = [
        host for host in reported if outcomes[host].status == "failed" and outcomes[host].exit_code != TEMPORARY_FAILURE
    ]
    agreed = {outcomes[host].cause_host for host in self_failed}
    if len(agreed) == 1 and agreed <= set(failures):  # With the link, the hosts agree on the first failure.
        return agreed.pop()
    return (
        min(self_failed, key=lambda host: _failed_at_ns(outcomes[host], failures.index(host)))
        if self_failed
        else failures[0]
    )


def failed_host(verdict: JobEnd, outcomes: Mapping[str, Outcome]) -> str:
    """Return the host that caused the failure; "" if none did, or for a hang of no single host."""
    outcome = outcomes.get(verdict.host)
    return "" if outcome is not None and outcome.cause.kind == "Hang" and not outcome.cause_host else verdict.host


def host_end(outcome: Outcome, host: str) -> str:
    """Return what happened on *host* itself, "" if it succeeded."""
    if outcome.status == "succeeded":
        return ""
    if outcome.cause.kind == "Hang":
        return "hung"
    if outcome.status == "failed" and outcome.cause_host not in ("", host):
        return f"{outcome.this_host_end or 'ended with it'}; host {outcome.cause_host} was the cause"
    if outcome.status == "failed" and outcome.cause.process and outcome.cause.process_end:
        return f"{outcome.cause.process} {outcome.cause.process_end}"
    return outcome.cause.message.partition("\n")[0]


def failure_reason(verdict: JobEnd, vanished: bool, failure: str) -> str:
    """Return the platform's FailureReason; *failure* is the host's output/failure, "" if it wrote none."""
    if verdict.status != "Failed":
        return ""
    if vanished:
        return f"InternalServerError: host {verdict.host} vanished"
    reason = failure.strip()[:REASON_CHARACTERS]
    return f"AlgorithmError: {reason or f'{verdict.host} ended with exit code {verdict.exit_code}'}"


def no_space(job_dir: Path, verdict: JobEnd, failure: str, last_line: str) -> str:
    """Return the FailureReason of a job that filled its disk. *failure*: the host's output/failure, *last_line*: the
    last line of its script; "" where there is none."""
    reason = failure.strip()[:REASON_CHARACTERS] or last_line
    if verdict.status != "Failed":
        reason = "the results could not be packed; each host's own are in hosts/"
    return f"InternalServerError: no space left on the disk of {job_dir}: {reason or f'{verdict.host} ended'}"


def last_values(samples: Iterable[Sample], earlier: Mapping[str, Sample] | None = None) -> dict[str, Sample]:
    """Return the newest sample of each metric, from the lowest rank that prints it.

    *samples* are ordered by time; *earlier* is this function's result for the samples before them.
    """
    newest = dict(earlier or {})
    for sample in samples:
        current = newest.get(sample.name)
        if current is None or _place(sample) <= _place(current):
            newest[sample.name] = sample
    return newest


def value_text(value: float) -> str:
    """Return *value* short enough for a table."""
    return f"{value:.6g}"


def summary(report: JobReport, job_dir: Path) -> str:
    """Return the summary that is printed at the job's end."""
    end = f"{report.status} ({report.secondary_status})" if report.secondary_status != report.status else report.status
    lines = [f"{report.name}: {end}, exit code {report.exit_code}"]
    if report.failure_reason:
        # The traceback follows the first empty line; the rank has already printed it.
        lines += ["", *report.failure_reason.partition("\n\n")[0].splitlines(), ""]
    for host, host_report in sorted(report.hosts.items(), key=lambda pair: in_order(pair[0])):
        cause = f": {host_report.cause}" if host_report.cause and host_report.cause not in report.failure_reason else ""
        lines.append(f"  {host:<11} exit code {host_report.exit_code}{cause}")
    for name, value in report.metrics.items():
        doubt = "  (its regex misreads some numbers: the log says which)" if name in report.misread else ""
        lines.append(f"  {name:<23} {_metric_text(value)}{doubt}")
    if report.managed_spot:
        lines += [f"  {line}" for line in (*map(interruption_text, report.interruptions), *spent(report))]
    else:
        billed = f", {report.billable_seconds:g} s billable" if len(report.hosts) > 1 else ""
        lines.append(f"  {report.training_seconds:g} s of training{billed}")
    lines += [f"  note: {note}" for note in report.notes]
    lines.append(f"  {job_dir}: {', '.join(['job.json', *report.artifacts.values()])}")
    return "\n".join(lines)


def spent(report: JobReport) -> tuple[str, ...]:
    """Return the seconds of all hosts, and what a job with interruptions saved."""
    return spot_words(round(report.training_seconds * max(len(report.hosts), 1), 3), report.billable_seconds)


def _metric_text(value: float | str) -> str:
    return value if isinstance(value, str) else value_text(value)


def _place(sample: Sample) -> int:
    return sample.rank or 0


def _failed_at_ns(outcome: Outcome, order: int) -> tuple[int, int]:
    stamps = [end.ended_ns for end in outcome.exits if not end.ok and not end.signalled]
    return (min(stamps) if stamps else 2**63, order)
