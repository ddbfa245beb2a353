"""The attempts of one host's script: how far each came, and the cleaning up before the next (docs/restart.md)."""

import contextlib
import gc
from itertools import islice
from pathlib import Path

import msgspec

from toolkit import exit_codes, folders
from toolkit.folders import remove
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome, signal_name
from toolkit.job.restart import Budget, Failure, Restart, Steps, news, times
from toolkit.log import Log
from toolkit.status_pages import pages
from toolkit.train.line_monitors import LineMonitors
from toolkit.train.rendezvous import Rendezvous
from toolkit.train.supervise.liveness import HANG
from toolkit.train.supervise.stop_request import STATUS_FOLDER

# The most entries of a checkpoint folder that are compared. A new file also changes the time of its folder.
LOOKED_AT = 10_000


class Attempts:
    """Counts and prepares attempts. `number`: the attempt that runs, 0 for the first. `rendezvous`: their port."""

    def __init__(self, job: Job, run_folder: Path, line_monitors: LineMonitors, log: Log) -> None:
        self._job = job
        self._run_folder = run_folder
        self._line_monitors = line_monitors
        self._log = log
        self._budget = Budget(allowed=job.settings.restarts)
        self._restarts: tuple[Restart, ...] = ()
        self._saved = self._checkpoints()
        self.rendezvous = Rendezvous(run_folder, log)

    @property
    def number(self) -> int:
        return self._restarts[-1].attempt if self._restarts else 0

    @property
    def environ(self) -> dict[str, str]:
        """The variable that tells a script its attempt; empty if the job allows no restarts."""
        can_be = self._job.settings.restarts or self.number
        return {"TOOLKIT_RESTART_COUNT": str(self.number)} if can_be else {}

    def read_rules(self) -> None:
        """Read the job's log rules, now that its code is in place (LineMonitors)."""
        self._line_monitors.read_rules()

    def steps(self) -> Steps:
        """Return how far this host's ranks came in this attempt: from heartbeats, metrics and checkpoints."""
        reported = [
            page.step for page in pages.read_all(self._run_folder / STATUS_FOLDER).values() if page.step is not None
        ]
        beats = Steps(seen=bool(reported), highest=max(reported, default=None))
        # torchrun's --max-restarts asks for no step.
        saved = Steps(seen=self._job.torchrun is not None or not self._checkpoints() <= self._saved)
        return self._line_monitors.steps.and_those(beats).and_those(saved)

    def alone(self, outcome: Outcome, *, stopped_by: int | None) -> Outcome | Restart:
        """Decide on a host without a link: return *outcome*, or the restart that begins another attempt.

        A stop (signal *stopped_by*) between a failure and the restart that it is worth has stopped the job.
        """
        if not self._budget.allowed or outcome.status != "failed" or len(self._job.cluster.hosts) > 1:
            return outcome
        failure = Failure(kind=outcome.cause.kind, exit_code=outcome.exit_code, preempted=outcome.cause.preempted)
        steps = self.steps()
        refusal = self._budget.refusal(failure, steps)
        if refusal:
            self._log.warning(f"no restart: {refusal}")
            return outcome
        if stopped_by is not None:
            self._log.warning("no restart: a stop was requested")
            return _stopped(outcome, stopped_by, self.number + 1)
        restart = Restart(
            attempt=self.number + 1,
            host=outcome.cause_host,
            message=outcome.cause.message,
            process=outcome.cause.process,
            rank=outcome.cause.rank,
            exit_code=outcome.exit_code,
            failed_ns=outcome.cause.failed_ns,
            counted=self._budget.counts(failure, steps),
        )
        self._budget = self._budget.after(failure, steps)
        self._log.warning(news(restart, self._budget.used, self._budget.allowed, 1))
        return restart

    def begin(self, restart: Restart) -> None:
        """Begin the attempt that *restart* names: remove what ranks of the last one left for `train` and the
        platform."""
        self._restarts = (*self._restarts, restart)
        with contextlib.suppress(OSError):
            remove(self._run_folder / STATUS_FOLDER)
        (self._run_folder / HANG).unlink(missing_ok=True)
        for file in (self._job.folders.success, self._job.folders.failure):
            with contextlib.suppress(OSError):  # If the folder is not writable, the report at the end says so.
                file.unlink()
        self._saved = self._checkpoints()
        self._line_monitors.begin_attempt()
        # The last attempt's objects refer to each other, and hold the tails of its streams, 1 MiB with 8 ranks. Python
        # looks for such garbage rarely once it is old: `train` grew by 1 MiB with each restart (scripts/soak).
        gc.collect()

    def with_restarts(self, outcome: Outcome) -> Outcome:
        """Return the job's *outcome* with its earlier attempts."""
        if not self._restarts:
            return outcome
        text = "; ".join(part for part in (outcome.cause.process_end, times(len(self._restarts))) if part)
        cause = msgspec.structs.replace(outcome.cause, process_end=text)
        return msgspec.structs.replace(outcome, cause=cause, restarts=self._restarts)

    def _checkpoints(self) -> set[tuple[int, int, int]]:
        """Return (inode, time, size) of each file and folder below the checkpoint folder, to detect changes.

        The order of times does not matter: the clock may have been set back since the last save.
        """
        entries_seen: set[tuple[int, int, int]] = set()
        if not self._job.settings.restarts:
            return entries_seen
        try:
            entries = folders.walk(self._job.folders.checkpoints, folders.named_elsewhere)
            for entry in islice(entries, LOOKED_AT):
                status = entry.stat(follow_symlinks=False)
                entries_seen.add((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            pass  # A file was removed during the scan: the entries seen so far count.
        return entries_seen


def _stopped(outcome: Outcome, number: int, attempt: int) -> Outcome:
    """Return the outcome of a job that signal *number* stopped before *attempt*, the restart after *outcome*."""
    text = f"stopped by {signal_name(number)} before attempt {attempt} of the script began; {outcome.cause.message}"
    cause = msgspec.structs.replace(outcome.cause, blame="", kind="Stopped", message=text)
    return msgspec.structs.replace(outcome, status="stopped", exit_code=exit_codes.of_signal(number), cause=cause)
