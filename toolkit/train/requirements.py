"""Installs what the script needs: its requirements, and the check that the launcher's own modules are there."""

import os

import msgspec

from toolkit.errors import UserError
from toolkit.folders import as_absent, exists
from toolkit.job.job import Job
from toolkit.job.outcome import PhaseEnd
from toolkit.job.plan import Locked, Phase, Plan
from toolkit.log import Log
from toolkit.train.source import codeartifact, packages
from toolkit.train.source import install as source
from toolkit.train.supervise.phases import run_phase
from toolkit.train.supervise.supervisor import Supervisor


def install(job: Job, supervisor: Supervisor, log: Log) -> PhaseEnd | None:
    """Install the job's requirements; return how that ended, None if it succeeded."""
    with supervisor.signals.interrupting():
        installing = source.phase(job)
    if installing is None:
        return None
    if installing.choice:
        log.info(installing.choice)
    if repository := job.environ.get(codeartifact.VARIABLE):
        with supervisor.signals.interrupting():
            installing = _from_repository(repository, installing, log)
    # The file is not removed: another train may wait for its lock, and a third would then lock a new file.
    lock = Locked(path=job.folders.scratch.parent / f"toolkit-{os.getuid()}-pip.lock", within_s=job.settings.join_s)
    with supervisor.liveness.doing("installing"):
        ended = run_phase(supervisor, msgspec.structs.replace(installing, needs=(lock,)))
    if ended is None:
        log.info("requirements are already installed in this container: skipped")
    elif not ended.exits or not all(e.ok for e in ended.exits) or ended.stopped_by is not None:
        return ended
    elif installing.skip_if is not None:
        source.remember(installing.skip_if)
    return None


def _from_repository(arn: str, installing: Phase, log: Log) -> Phase:
    """Return *installing* with the repository *arn* as pip's only index."""
    if installing.skip_if is not None and exists(installing.skip_if, as_absent):
        return installing  # Nothing will be installed.
    index = codeartifact.index(arn)
    log.hide({"CODEARTIFACT_AUTH_TOKEN": index.token})
    log.info(f"packages are installed from {arn} alone")
    main = msgspec.structs.replace(installing.main, environ=codeartifact.environ_of(installing.main.environ, index))
    return msgspec.structs.replace(installing, main=main)


def with_packages(job: Job, log: Log) -> Job:
    """Return *job* with a folder for its requirements, if the image's own cannot take them."""
    folder = packages.chosen(job) if source.phase(job) is not None else None
    if folder is None:
        return job
    packages.make(folder, log)
    return packages.with_packages(job, folder)


def check_modules(job: Job, plan: Plan) -> None:
    """Check that the launcher's Python modules are in the script's interpreter.

    Raises:
        UserError: one is not.
    """
    for module in plan.modules:
        if not packages.is_there(module, job):
            raise UserError(
                f"expected {module} in {job.interpreter}, which {plan.launcher} needs, found none",
                hint=f"Install it in the image (pip install {module}) or name it in requirements.txt.",
            )
