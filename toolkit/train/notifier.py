"""Tells an address of the user what happens to the job: its end, a hang, a restart, a finding (docs/notify.md).

Each message goes from a fork of `train`, so that nothing waits for a server but, for 5 s at most, the job's end, when
all its files are written.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any, Literal

from toolkit import files
from toolkit.job.explanation import Explanation
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome
from toolkit.job.restart import Restart
from toolkit.log import Log
from toolkit.series.finding import Finding
from toolkit.train.notify.message import Event, Form, Message, check_package, describe_end, form_of, masked
from toolkit.train.platforms import outcome_files
from toolkit.train.supervise import children
from toolkit.train.supervise.kernel import prctl
from toolkit.train.supervise.poll import is_readable

# How long the end of a job waits for the last message, and that of a stopped one, whose platform does not wait.
WITHIN_S, STOPPED_WITHIN_S = 5.0, 2.0
SENT = "sent"
MOST_MESSAGES = 20  # Besides that of the end, from one host: what happens more often says nothing new.


State = Literal["running", "hanging", "restarting"]


class Notifier:
    """Sends the messages of one host. *address* "": none is sent."""

    def __init__(self, address: str, log: Log) -> None:
        self._address = address.strip()
        self._log = log
        self._job: Job | None = None
        self._apart: Callable[[int], None] = lambda _pid: None
        self._sent = 0
        self._reports: dict[int, int] = {}  # The pid of each fork that may still send, by its pipe.
        self._form: Form = "json"
        if self._address:
            log.hide({"webhook_token": self._address})

    def check(self) -> None:
        """Check the address; a wrong one gets no messages.

        Raises:
            UserError: it is no address, or needs a package that is missing.
        """
        address, self._address = self._address, ""
        if address:
            self._form = form_of(address)
            check_package(self._form)
            self._address = address

    def begin(self, job: Job) -> None:
        """Begin to speak for *job*."""
        if job.nested:  # The outer `train` tells of it.
            self._address = ""
        if self._address:
            self._job = job

    def set_apart(self, note_pid: Callable[[int], None]) -> None:
        """Have *note_pid* called with the pid of each fork that is made beside the script, which no phase waits for."""
        self._apart = note_pid

    def tell_hang(self, idle_s: float) -> None:
        """Tell that no rank was active for *idle_s*; the leader alone does."""
        job = self._job
        if job is None or not job.cluster.is_leader:
            return
        stops = job.settings.stall_action == "stop"
        action = (
            "Read the stacks in output/data/stacks; the job ends with 124."
            if stops
            else ("Read the stacks in output/data/stacks, and stop the job if it does not go on.")
        )
        cause = f"No rank has written or computed anything for {idle_s:.0f} s (TOOLKIT_STALL_S)."
        self._tell("hang", self._explain(job, "hanging", cause, next_action=action, kind="Hang"))

    def tell_restart(self, restart: Restart) -> None:
        """Tell that the ranks start again; the leader alone does."""
        job = self._job
        if job is None or not job.cluster.is_leader:
            return
        host = f" of host {restart.host}" if restart.host else ""
        explanation = self._explain(
            job,
            "restarting",
            restart.message,
            next_action=f"Nothing: attempt {restart.attempt} begins, of {job.settings.restarts} restarts at most.",
            culprit=f"{restart.process}{host}: ended with {restart.exit_code}",
            host=restart.host,
            rank=restart.rank,
        )
        self._tell("restart", explanation)

    def tell_finding(self, finding: Finding) -> None:
        """Tell of *finding*, which is one of this host."""
        if self._job is None:
            return
        explanation = self._explain(
            self._job,
            "running",
            finding.text,
            next_action=finding.change,
            kind=finding.rule,
            host=finding.host,
            rank=finding.rank,
        )
        self._tell("finding", explanation)

    def tell_end(self, outcome: Outcome) -> None:
        """Tell how the job ended, after its files are written; *outcome* has it. `wait` must follow."""
        if not self._address or not self._speaks_at_end(outcome):
            return
        job = self._job
        output = job.folders.output if job is not None else None
        document = b""
        if output is not None:
            try:
                document = files.read(output / "outcome.json")
            except OSError:
                pass  # Its own line says so.
        name = job.spec.name if job is not None else ""
        masked_outcome = outcome_files.masked(outcome, self._log)
        message = describe_end(masked_outcome, name or "job", str(output or ""), document)
        self._send(message)

    def wait(self, outcome: Outcome) -> None:
        """Wait for the messages that are on their way, not for long, and say which did not arrive."""
        self._collect(STOPPED_WITHIN_S if outcome.status == "stopped" else WITHIN_S)

    def _speaks_at_end(self, outcome: Outcome) -> bool:
        """The leader speaks for the job; where it has vanished the first follower does, and a host that could not read
        its job for itself."""
        if self._job is None:
            return True
        cluster = self._job.cluster
        leader = cluster.leader
        is_leader_gone = outcome.cause_host == leader and outcome.cause.message.startswith(f"host {leader} vanished")
        followers = [host for host in cluster.taking_part or cluster.hosts if host != leader]
        return cluster.is_leader or (is_leader_gone and followers[:1] == [cluster.current])

    def _explain(self, job: Job, state: State, cause: str, **more: Any) -> Explanation:
        folder = str(job.folders.output)
        return Explanation(job=job.spec.name or "job", folder=folder, state=state, cause=cause, **more)

    def _tell(self, event: Event, explanation: Explanation) -> None:
        self._collect(0.0)
        self._sent += 1
        if self._sent > MOST_MESSAGES:
            if self._sent == MOST_MESSAGES + 1:
                self._log.warning(f"TOOLKIT_NOTIFY: after {MOST_MESSAGES} messages only that of the end follows")
            return
        message = Message(event=event, explanation=explanation)
        self._log.attempt("the notification could not be sent", lambda: self._send(message), None)

    def _send(self, message: Message) -> None:
        message = masked(message, self._log.mask)
        read_end, write_end = os.pipe()
        try:
            pid = children.fork_call(lambda: _send_apart(self._address, self._form, message, write_end), prctl=prctl())
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._apart(pid)
        self._reports[read_end] = pid

    def _collect(self, within_s: float) -> None:
        """Wait for the messages that are on their way, not longer than *within_s*, and say which did not arrive. Those
        that are late then are given up, unless *within_s* is 0."""
        until_s = time.monotonic() + within_s
        for read_end, pid in tuple(self._reports.items()):
            if is_readable(read_end, max(0.0, until_s - time.monotonic())):
                answer = os.read(read_end, 4096).decode("utf-8", "replace")
                trouble = "" if answer == SENT else answer or "its sender was ended"
            elif within_s:
                children.send(pid, signal.SIGKILL)
                trouble = f"the server did not answer within {within_s:g} s"
            else:
                continue
            os.close(read_end)
            del self._reports[read_end]
            if trouble:
                self._log.warning(f"TOOLKIT_NOTIFY: a message did not arrive: {trouble}")


def _send_apart(address: str, form: Form, message: Message, report: int) -> int:
    """Send *message* in this fork, which holds none of the job's descriptors; tell *report* what went wrong."""
    os.dup2(report, 3)
    os.closerange(4, 4096)
    try:
        from toolkit.train.notify.send import send

        trouble = send(address, form, message)
    except Exception as error:  # noqa: BLE001 - the job goes on, whatever is wrong with a message
        trouble = type(error).__name__
    os.write(3, (trouble or SENT)[:4096].encode("utf-8", "replace"))
    return 0
