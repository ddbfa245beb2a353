"""A pod of an Indexed Job or a JobSet.

Kubernetes gives a pod its index (JOB_COMPLETION_INDEX) but does not name the other pods: TOOLKIT_HOSTS does, which the
manifests of `toolkit render` set. The failure text also becomes the container's termination message, which
`kubectl describe pod` shows (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from toolkit.folders import is_file
from toolkit.job.job import Folders
from toolkit.job.outcome import Outcome
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.platforms import outcome_files
from toolkit.train.platforms.place import Place, cluster_of, listed_hosts

# The kubelet reads at most this much of a termination message.
LIMIT_BYTES = 4096


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the pod's place: TOOLKIT_HOSTS by JOB_COMPLETION_INDEX, else this pod alone.

    Raises:
        ContractError: TOOLKIT_HOSTS is not a list of hosts, or does not contain this pod.
    """
    pod = environ.get("HOSTNAME") or "pod"
    hosts, current = listed_hosts(settings, environ, environ.get("JOB_COMPLETION_INDEX")) or ((pod,), pod)
    return Place(cluster=cluster_of(hosts, current))


def report(termination_log: Path, folders: Folders, outcome: Outcome, log: Log) -> None:
    """Write the files of *outcome*, and its failure text as the termination message if *termination_log* exists."""
    outcome_files.report(folders, outcome, log)
    write = partial(_write_message, termination_log, outcome, log)
    log.attempt("the termination message could not be written", write, None)


def _write_message(file: Path, outcome: Outcome, log: Log) -> None:
    def unreadable(error: OSError) -> None:
        log.warning(f"{file}: cannot be written ({error.strerror})")

    if outcome.exit_code == 0 or not is_file(file, unreadable):
        return
    text = outcome_files.failure_text(outcome_files.masked(outcome, log), limit=LIMIT_BYTES)
    beginning = text.encode("utf-8", "replace")[:LIMIT_BYTES]
    try:
        file.write_text(beginning.decode("utf-8", "ignore"), "utf-8")  # "ignore" drops half a character at the cut.
    except OSError as error:
        log.warning(f"{file}: cannot be written ({error.strerror})")
