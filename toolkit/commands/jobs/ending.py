"""Tells in words how a job ended: the cause, who is to blame, and what happened on each host."""

import re

from toolkit import folders
from toolkit.commands.jobs.data import HostData, JobData
from toolkit.series.debugger_names import files_of

# SecondaryStatus of DescribeTrainingJob.
LIMITS = {
    "MaxRuntimeExceeded": "the job reached its time limit (MaxRuntimeInSeconds): ",
    "MaxWaitTimeExceeded": "the job reached its limit of training and waiting together (MaxWaitTimeInSeconds): ",
}
MESSAGE = re.compile(r'ErrorMessage "(?P<text>.*?)"(?:\nExtraInfo "(?P<extra>.*?)")?(?:\nCommand |\n\n|\Z)', re.DOTALL)
UNFINISHED = (
    "The job left no report and does not run any more: its container, its machine, or `toolkit run` itself was killed."
)
# A copy of profiler-output, as S3 has it.
UNREADABLE = "How the job ended is not known: "
DEBUGGER_ALONE = "Only SageMaker Debugger's files of this job are here, so that how it ended is not known."


def describe_cause(job: JobData) -> str:
    """Return the cause of the job's end, as completely as it is known."""
    vanished = [host.name for host in job.hosts if host.status == "vanished"]
    if job.status == "failed" and job.failed_host in vanished:
        return f"Host {job.failed_host} vanished: it was killed with everything that ran on it."
    outcome = job.outcome
    if outcome is not None and outcome.status != "succeeded" and (outcome.cause.message or outcome.plugin_failure_text):
        limit = LIMITS.get(job.stopped_by, "")
        return replace_host_paths(job, job.mask(limit + (outcome.cause.message or outcome.plugin_failure_text)))
    if job.reason:
        match = MESSAGE.search(job.reason)
        return match["text"] if match else job.reason.partition(": ")[2] or job.reason
    if job.status == "stopped":
        return f"The platform stopped the job ({job.stopped_by})." if job.stopped_by else "The job was stopped."
    if job.status == "unfinished":
        if unreadable := [host for host in job.hosts if has_unreadable_outcome(host)]:
            path = str(unreadable[0].outcome_file)
            note = next((note for note in job.notes if note.startswith(path)), f"{path} cannot be read.")
            return f"{UNREADABLE}{note.removeprefix(f'{job.folder}/')}"
        return DEBUGGER_ALONE if has_debugger_files_alone(job) else UNFINISHED
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


def replace_host_paths(job: JobData, text: str) -> str:
    """Return *text* with /opt/ml for a simulated host's folder: shorter, and as the script's author knows it."""
    for host in job.hosts:
        for folder in dict.fromkeys((host.output.parent, host.output.parent.resolve())):  # It may lie behind a link.
            text = text.replace(str(folder), "/opt/ml")
    return text


def has_debugger_files_alone(job: JobData) -> bool:
    """True if nothing of the job is there but SageMaker Debugger's files."""
    if job.status != "unfinished" or not job.hosts:
        return False
    return all(files_of(host.output) and not host.is_measured for host in job.hosts)


def has_unreadable_outcome(host: HostData) -> bool:
    """True if *host* wrote an outcome, which it does at its end, and it is damaged or of another version."""
    return host.outcome is None and folders.exists(host.outcome_file, folders.named_elsewhere)


def describe_host(job: JobData, host: HostData) -> str:
    """Return what happened on *host* itself, "" if that is all its status says."""
    if _is_hang(job) and job.failed_host and job.status == "failed":
        waited = f"waited for host {job.failed_host}"
        hung = "hung" if len(job.hosts) == 1 else "hung: the other hosts waited for it"
        return hung if host.name == job.failed_host else waited
    if host.cause:
        return host.cause
    outcome = host.outcome
    if outcome is None or outcome.status == "succeeded":
        return ""
    if outcome.this_host_end:
        return outcome.this_host_end
    cause = outcome.cause
    if cause.process_end:
        return f"{cause.process} {cause.process_end}".strip()
    return next((line.strip() for line in cause.message.splitlines() if line.strip()), "")


def _is_hang(job: JobData) -> bool:
    return job.outcome is not None and job.outcome.cause.kind == "Hang"
