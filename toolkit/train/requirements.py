"""Installs what the script needs: its requirements, and the check that the launcher's own modules are there."""

import os

import msgspec

from toolkit.errors import UserError
from toolkit.job.job import Job
from toolkit.job.outcome import PhaseEnd
from toolkit.job.plan import Locked, Phase, Plan
from toolkit.log import Log
from toolkit.train import package_snapshots
from toolkit.train.source import codeartifact, packages
from toolkit.train.source import install as source
from toolkit.train.supervise.phases import Start, run_phase
from toolkit.train.supervise.supervisor import Supervisor


def install(job: Job, supervisor: Supervisor, log: Log) -> PhaseEnd | None:
    """Install the job's requirements, or unpack their snapshot; return how that ended, None if it succeeded.

    Raises:
        UserError: the requirements or an option of theirs are wrong.
        PlatformError: AWS CodeArtifact cannot be reached.
    """
    with supervisor.signals.interrupting():
        installing = source.phase(job)
    if installing is None:
        return None
    uri = package_snapshots.find_uri(job)
    unpacked = False

    def unpack_or_install(start: Start) -> PhaseEnd | None:
        nonlocal unpacked
        snapshot = package_snapshots.prepare(job, installing, uri, supervisor, log) if uri else None
        unpacked = snapshot is not None and snapshot.restore()
        if unpacked:
            return None
        if installing.choice:
            log.info(installing.choice)
        ended = start(_from_repository(job, installing, supervisor, log))
        if snapshot is not None and _has_succeeded(ended):
            snapshot.store()
        return ended

    # The file is not removed: another train may wait for its lock, and a third would then lock a new file.
    lock = Locked(path=job.folders.scratch.parent / f"toolkit-{os.getuid()}-pip.lock", within_s=job.settings.join_s)
    with supervisor.liveness.doing("installing"):
        ended = run_phase(supervisor, msgspec.structs.replace(installing, needs=(lock,)), unpack_or_install)
    if ended is not None and not _has_succeeded(ended):
        return ended
    if ended is None and not unpacked:
        log.info("requirements are already installed in this container: skipped")
    elif installing.skip_if is not None:
        source.remember(installing.skip_if)
    return None


def _has_succeeded(ended: PhaseEnd) -> bool:
    return bool(ended.exits) and all(e.ok for e in ended.exits) and ended.stopped_by is None


def _from_repository(job: Job, installing: Phase, supervisor: Supervisor, log: Log) -> Phase:
    """Return *installing* with the job's repository of AWS CodeArtifact, if any, as pip's only index."""
    arn = job.environ.get(codeartifact.VARIABLE)
    if not arn:
        return installing
    with supervisor.signals.interrupting():
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
