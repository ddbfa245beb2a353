"""The port at which a job's ranks meet: a free one for a job of one host, checked and claimed before each start."""

from pathlib import Path

import msgspec

from toolkit.errors import PlatformError
from toolkit.job.job import Job
from toolkit.job.outcome import Outcome
from toolkit.job.plan import Phase, Plan
from toolkit.job.strategy import STRATEGIES
from toolkit.log import Log
from toolkit.train.launchers import table as launchers
from toolkit.train.launchers.environment import MASTER_PORT, chooses_port, master
from toolkit.train.probe import port as ports


class Rendezvous:
    """Makes the plan with the port, and looks at the port again before each attempt: it may have been taken.

    Seconds pass between that and the launcher's listen(2). Meanwhile no job of one host takes the port, since `train`
    claims it. Another program may, and so may a job of several hosts, which must use the port on which its hosts agree:
    `with_holder` names it.
    """

    def __init__(self, run_folder: Path, log: Log) -> None:
        self._run_folder = run_folder
        self._log = log
        self._own = ports.OwnPort()
        self._job: Job | None = None

    def plan(self, job: Job) -> Plan:
        """Return the plan for *job*, whose script is in place."""
        self._job = job
        return launchers.plan(self._with_port(job), self._run_folder)

    def phase(self, phase: Phase) -> Phase:
        """Return *phase* of the plan, for the port that is free now.

        Raises:
            PlatformError: another process has the port at which the job's hosts are to meet.
        """
        assert self._job is not None
        if not chooses_port(self._job):
            self._check(self._job)
            return phase
        previous_port = self._own.port
        job = self._with_port(self._job)
        return phase if job.port == previous_port else launchers.plan(job, self._run_folder).phase

    def with_holder(self, outcome: Outcome) -> Outcome:
        """Return *outcome*, with the process that took the port after `phase` if the job failed for want of it."""
        job = self._job
        # An end that could not be judged, for want of the toolkit's own files, has no advice.
        if job is None or not job.cluster.is_leader or not outcome.cause.advice:
            return outcome
        from toolkit.train.verdict.advice import PORT

        if outcome.cause.advice != PORT:
            return outcome
        port = self._own.port or master(job)[1]
        holder = ports.holder(port)
        if not holder:
            return outcome
        how = "Run the job again: train chooses another port" if chooses_port(job) else _how(job)
        advice = (
            f"{holder} listens on the port of the job's ranks, MASTER_PORT {port}: it took the port after train had "
            f"found it free. {how}."
        )
        return msgspec.structs.replace(outcome, cause=msgspec.structs.replace(outcome.cause, advice=advice))

    def close(self) -> None:
        """Give the job's port up."""
        self._own.close()

    def _with_port(self, job: Job) -> Job:
        return msgspec.structs.replace(job, port=self._own.take(MASTER_PORT)) if chooses_port(job) else job

    def _check(self, job: Job) -> None:
        if not job.cluster.is_leader:
            return  # Only the leader opens the port.
        port = master(job)[1]
        self._own.claim(port)
        reason = ports.refused(port)
        if not reason:
            return
        holder = ports.holder(port)
        error = PlatformError(
            f"expected a free port for the job's ranks to meet at, found {reason.lower()}"
            + (f": {holder} listens on it" if holder else ""),
            where=f"MASTER_PORT {port}",
            hint=f"{_how(job)}.",
        )
        if launchers.name_for(job) != "script" and STRATEGIES[job.strategy.name].needs_rendezvous_port:
            raise error
        self._log.warning(str(error))


def _how(job: Job) -> str:
    everywhere = ", the same on every host" if len(job.cluster.hosts) > 1 else ""
    if job.torchrun is not None:
        return f"Give another --rdzv-endpoint or --master-port{everywhere}"
    if everywhere:
        return f"Set MASTER_PORT to a free port{everywhere}"
    return "Unset MASTER_PORT, or set a free one"
