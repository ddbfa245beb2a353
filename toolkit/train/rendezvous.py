"""The port at which a host's ranks meet: a free one for a job of one host, checked just before each start."""

from pathlib import Path

import msgspec

from toolkit.errors import PlatformError
from toolkit.job.job import Job
from toolkit.job.plan import Phase, Plan
from toolkit.job.strategy import STRATEGIES
from toolkit.log import Log
from toolkit.train.launchers import table as launchers
from toolkit.train.launchers.environment import MASTER_PORT, chooses_port, master
from toolkit.train.probe import port as ports


class Rendezvous:
    """Makes the plan with the port, and looks at the port again before each attempt: it may have been taken."""

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
            PlatformError: another process holds the port at which the job's hosts are to meet.
        """
        assert self._job is not None
        if not chooses_port(self._job):
            self._check(self._job)
            return phase
        previous_port = self._own.port
        job = self._with_port(self._job)
        return phase if job.port == previous_port else launchers.plan(job, self._run_folder).phase

    def close(self) -> None:
        """Give the job's port up."""
        self._own.close()

    def _with_port(self, job: Job) -> Job:
        return msgspec.structs.replace(job, port=self._own.take(MASTER_PORT)) if chooses_port(job) else job

    def _check(self, job: Job) -> None:
        if not job.cluster.is_leader:
            return  # Only the leader opens the port.
        port = master(job)[1]
        reason = ports.refused(port)
        if not reason:
            return
        holder = ports.holder(port)
        several = len(job.cluster.hosts) > 1
        error = PlatformError(
            f"expected a free port for the job's ranks to meet at, found {reason.lower()}"
            + (f": {holder} listens on it" if holder else ""),
            where=f"MASTER_PORT {port}",
            hint="Set MASTER_PORT to a free port, the same on every host."
            if several
            else "Unset MASTER_PORT, or set a free one.",
        )
        if launchers.name_for(job) != "script" and STRATEGIES[job.strategy.name].needs_rendezvous_port:
            raise error
        self._log.warning(str(error))
