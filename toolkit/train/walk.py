"""The steps of `train`, in order: from the job's documents to the reported outcome. Lower packages decide."""

import errno
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import toolkit
from toolkit import settings, status_pages
from toolkit.artifacts import folders as job_folders
from toolkit.artifacts.scratch import RunFolder
from toolkit.errors import ToolkitError, UserError, at, of_path
from toolkit.job.job import Job
from toolkit.job.outcome import Ended, Memory, Outcome
from toolkit.job.plan import Locked, Phase, Plan, ProcessSpec, StopPolicy, quoted
from toolkit.job.restart import Restart
from toolkit.job.scripts import only_script
from toolkit.job.variables import fitting
from toolkit.launchers import table as launchers
from toolkit.log import Log
from toolkit.platforms import table as platforms
from toolkit.probe import host, look
from toolkit.source import classify, fetch, install, packages
from toolkit.supervise import limits
from toolkit.supervise.asking import STATUS_FOLDER
from toolkit.supervise.console import Console, Outlets
from toolkit.supervise.hang import Stall
from toolkit.supervise.loop import Supervisor
from toolkit.supervise.signals import Interrupted, Signals
from toolkit.supervise.stacks import SIGNAL as STACKS_SIGNAL
from toolkit.train import ending, plugin, within
from toolkit.train.attempts import Attempts
from toolkit.train.line_monitors import LineMonitors

if TYPE_CHECKING:
    from toolkit.train.coordinator import Coordinator
    from toolkit.train.step_times import StepTimes

STACKS = "stacks"
MARKER = "TOOLKIT_RUN_ID"
# The most characters of a command in the log: about 200 hyperparameters.
MOST_SHOWN = 8_000
# Room for the variables that a launcher adds to the environment of its ranks (torchrun: about 20).
LAUNCHER_ADDS_BYTES = 16384


def train(environ: Mapping[str, str], *, interpreter: str, log: Log, signals: Signals | None = None) -> int:
    """Run the job that *environ* and its documents describe; return the exit code (docs/exit-codes.md).

    Whatever happens, the outcome is reported once, and an error in a report does not change it.
    *signals*: those installed at the start of the process.
    """
    if signals is None:
        with Signals(last=True) as signals:
            return train(environ, interpreter=interpreter, log=log, signals=signals)
    platform = platforms.detect(environ)
    folders = platform.folders(environ)
    log.hide(environ)
    nested = within.refusal(environ.get(MARKER, ""), folders)
    if nested is not None:
        log.error(str(nested))  # Report nothing: the job's files belong to the run that is active.
        return nested.exit_code
    outlets = Outlets()
    log.say_through(outlets.stderr.say, outlets.flush)
    log.attempt("an earlier run's files could not be removed", lambda: platform.clear_stale(folders, log), None)
    outcome = _outcome(platform, dict(environ), interpreter, signals, outlets, log)
    ending.report(platform, folders, outcome, outlets, log)
    if outcome.status == "stopped":
        log.attempt("a half fetched source could not be removed", lambda: fetch.clear(folders.code), None)
    return outcome.exit_code


def prepared(platform: platforms.Platform, environ: dict[str, str], interpreter: str, log: Log) -> Job:
    """Return the job; its script is not in place yet.

    Raises:
        ContractError: a document or setting is missing or wrong.
    """
    unknown = settings.unknown(environ)
    if unknown:
        log.warning(unknown)
    ours = settings.read(environ)
    machine = look.look(environ)
    for note in machine.notes:
        log.warning(note)
    if machine.other_train:
        log.warning(f"train on PATH is {machine.other_train}, not this toolkit. Install this toolkit last")
    job, unknown = platforms.read_job(platform, environ, ours, machine, log, interpreter=interpreter)
    if unknown:
        log.warning(unknown)
    log.brief = ours.log_failure == "brief"
    return look.with_mpi(job)


def with_script(job: Job, log: Log) -> Job:
    """Return *job* with its script from the code folder.

    Raises:
        UserError: the entry point does not exist, or cannot be run.
    """
    entry = job.entry or (None if job.plugin else only_script(job.folders.code))
    if entry and not job.entry:
        log.info(f"nothing names a script: {entry} is the only one in {job.folders.code}")
    with at(job.entry_from):
        script = classify.classify(job.folders.code, entry, job.plugin, job.argument_style)
    return msgspec.structs.replace(job, script=script, entry=entry)


def _outcome(
    platform: platforms.Platform,
    environ: dict[str, str],
    interpreter: str,
    signals: Signals,
    outlets: Outlets,
    log: Log,
) -> Outcome:
    me = ""
    try:
        with signals.interrupting():
            job = prepared(platform, environ, interpreter, log)
            me = job.cluster.current
            job_folders.prepare(job.folders, log)
        terminal = environ.get("TERM", "dumb") != "dumb"
        return _run(job, signals, outlets, log, terminal=terminal)
    except Interrupted as stop:
        return _stopped(stop, me)
    except ToolkitError as error:
        return _named(error, me)
    except OSError as error:
        return _of_os_error(error, me)
    except Exception as error:  # noqa: BLE001 - the outermost level: faults of `train` are reported, too
        return _fault(error, me)


def _of_os_error(error: OSError, me: str) -> Outcome:
    """Return the outcome of a job ended by a limit of the host or a path's permissions, else by a fault of `train`."""
    limit = limits.exhausted(error) or (of_path(error) if error.errno in (errno.EACCES, errno.EROFS) else None)
    return _fault(error, me) if limit is None else _named(limit, me)


def _fault(error: Exception, me: str) -> Outcome:
    import traceback

    from toolkit.verdict.judge import of_fault

    trace = "".join(traceback.format_exception(error))
    return of_fault(f"{type(error).__name__}: {error}", trace, me)


def _run(job: Job, signals: Signals, outlets: Outlets, log: Log, *, terminal: bool) -> Outcome:
    """Run *job* on this host, together with the other hosts; return the outcome, with a link that of the whole job.

    *terminal*: if the console is a terminal, it understands control sequences.
    """
    run = RunFolder(job.folders.scratch, f"{os.getpid()}-{time.time_ns():x}", log)
    run_folder = run.plain
    job = msgspec.structs.replace(job, folders=msgspec.structs.replace(job.folders, scratch=run.scratch))
    memory = _OomWatch()
    others = None
    closing: list[tuple[str, Callable[[], None]]] = [("the run's folder", run.close)]
    try:
        linked = len(job.cluster.hosts) > 1 and job.settings.link == "on"
        with signals.interrupting():
            step_times = _step_times(job, run_folder, linked=linked)
            line_monitors = LineMonitors(job, log, step_times)
            if linked:
                # Sockets and hashes: 8 ms, which only a job with several hosts pays.
                from toolkit.train.coordinator import Coordinator

                others = Coordinator(job, log, memory, step_times)
                closing.append(("the link to the other hosts", others.close))
        closing.append(("metrics and log rules", line_monitors.close))
        if not linked and len(job.cluster.hosts) > 1 and job.settings.restarts:
            log.warning(
                "TOOLKIT_RESTARTS is ignored: without the link (TOOLKIT_LINK=off) hosts cannot restart together"
            )
        supervisor = Supervisor(
            signals=signals,
            console=_console(job, line_monitors, log, outlets, terminal=terminal),
            log=log,
            run_folder=run_folder,
            marker=f"{MARKER}={run_folder.name}",
            python=job.interpreter,
            alone=len(job.cluster.hosts) == 1,
            others=others,
            stall=_stall(job, run_folder),
            rules=line_monitors,
        )
        log.say_through(supervisor.console.stderr.say, supervisor.finish)
        return _attempts(job, supervisor, Attempts(job, run_folder, line_monitors, log), memory, others, log)
    finally:
        for what, close in reversed(closing):
            log.attempt(f"{what} could not be closed", close, None)


def _attempts(
    job: Job, supervisor: Supervisor, attempts: Attempts, memory: "_OomWatch", others: "Coordinator | None", log: Log
) -> Outcome:
    """Run the script, and restart it as long as its failures are worth it (docs/restart.md); return the outcome."""
    phase, outcome = _first(job, supervisor, attempts, memory, log)
    while True:
        decide = partial(_decided, supervisor, attempts, others, outcome)
        ended = log.attempt("it could not be settled how the job goes on", decide, outcome)
        if isinstance(ended, Outcome):
            return log.attempt(
                "the attempts could not be added to the outcome", partial(attempts.with_restarts, ended), ended
            )
        assert phase is not None  # No restart unless every host has started its script.
        attempts.begin(ended)
        memory.begin()
        if supervisor.stall is not None:
            supervisor.stall = _stall(job, supervisor.run_folder, ended.attempt)
        outcome = _attempt(job, phase, supervisor, attempts, memory, log)


def _decided(
    supervisor: Supervisor, attempts: Attempts, others: "Coordinator | None", outcome: Outcome
) -> Outcome | Restart:
    """Return the job's outcome for this host, whose own end is *outcome*, or the restart for another attempt."""
    if others is not None:
        return others.settle(supervisor, outcome, attempts.steps())
    return attempts.alone(outcome, stopped=supervisor.stopped_by is not None)


def _first(
    job: Job, supervisor: Supervisor, attempts: Attempts, memory: Callable[[], Memory], log: Log
) -> tuple[Phase | None, Outcome]:
    """Prepare this host and run the first attempt; return the script's phase and how that attempt ended."""
    phase = None
    interrupting = supervisor.signals.interrupting
    try:
        with interrupting():
            fetch.place(job, log)
            job = _with_packages(with_script(job, log), log)
            attempts.read_rules()
            plan = launchers.plan(job, supervisor.run_folder)
            _say_plan(job, plan, log)
        ended = _install(job, supervisor, log)
        if ended is not None:
            return None, _judged(job, msgspec.structs.replace(ended, memory=memory()))
        with interrupting():
            _check_modules(job, plan)
        phase = plan.phase
    except Interrupted as stop:
        supervisor.notice()  # It sends the stop to the other hosts.
        return None, _stopped(stop, job.cluster.current)
    except ToolkitError as error:
        return None, _named(error, job.cluster.current)
    return phase, _attempt(job, phase, supervisor, attempts, memory, log)


def _attempt(
    job: Job, phase: Phase, supervisor: Supervisor, attempts: Attempts, memory: Callable[[], Memory], log: Log
) -> Outcome:
    """Run an attempt on this host and return its outcome; a ToolkitError becomes an outcome, too."""
    stacks = supervisor.stall.prepared if supervisor.stall is not None else None
    try:
        main = _fitted(phase.main, supervisor.run_folder, stacks, attempts.environ, log)
        log.info(f"Invoking script with the following command: {_shown(main.argv, log)}")
        marked = {MARKER: supervisor.run_folder.name}
        services = (*phase.services, *_sidecars(job, supervisor.run_folder))
        services = tuple(msgspec.structs.replace(each, environ={**each.environ, **marked}) for each in services)
        ended = supervisor.run(msgspec.structs.replace(phase, main=main, services=services))
        assert ended is not None
        outcome = _judged(job, msgspec.structs.replace(ended, memory=memory()))
        return (
            outcome if job.plugin is None else plugin.with_its_own_text(outcome, supervisor.run_folder / STATUS_FOLDER)
        )
    except ToolkitError as error:
        return _named(error, job.cluster.current)


def _shown(argv: tuple[str, ...], log: Log) -> str:
    """Return a command for the log; of a very long one only the beginning. It is masked before it is cut, since a mask
    does not match half a secret."""
    text = log.mask(" ".join(quoted(token) for token in argv))
    more = len(text) - MOST_SHOWN
    return (
        text if more <= 0 else f"{text[:MOST_SHOWN]} ... ({more:,} characters more: outcome.json, toolkit check --json)"
    )


def _sidecars(job: Job, run_folder: Path) -> tuple[ProcessSpec, ...]:
    """Return the processes that report the running job to the platform: only on the leader."""
    if not job.sidecar or not job.cluster.is_leader:
        return ()
    metrics = job.folders.output / "metrics.jsonl"
    try:
        written_bytes = metrics.stat().st_size  # By an earlier attempt or run.
    except OSError:
        written_bytes = 0
    program = Path(toolkit.__file__).parent / "standalone" / f"{job.sidecar}.py"
    return (
        ProcessSpec(
            name=job.sidecar,
            argv=(
                job.interpreter,
                "-I",
                "-S",
                *map(str, (program, run_folder / STATUS_FOLDER, metrics, written_bytes)),
            ),
            environ=job.environ,
            cwd=run_folder,
            stop=StopPolicy(),
            optional=True,
        ),
    )


def _step_times(job: Job, run_folder: Path, *, linked: bool) -> "StepTimes | None":
    """Return the comparison of ranks' step times, None if no rank has peers to compare it with."""
    if not linked and launchers.world_size(job) == 1:
        return None
    from toolkit.train.step_times import StepTimes  # 5 ms, which only a job with several ranks pays.

    return StepTimes(job, run_folder, linked=linked)


def _stall(job: Job, run_folder: Path, number: int = 0) -> Stall | None:
    """Return how to watch attempt *number* for hangs; each attempt has its own folder for stacks."""
    ours = job.settings
    if not ours.stall_s:
        return None
    return Stall(
        after_s=ours.stall_s,
        stops=ours.stall_action == "stop",
        folder=job.folders.output_data / "stacks" / (f"round-{number}" if number else ""),
        prepared=run_folder / STACKS,
        host=job.cluster.current,
    )


def _judged(job: Job, ended: Ended) -> Outcome:
    """Return the outcome of *ended*; it imports `verdict`, which is not needed before the script has run."""
    from toolkit.verdict.judge import judge

    return judge(job, ended)


def _named(error: ToolkitError, host: str) -> Outcome:
    from toolkit.verdict.judge import of_error

    return of_error(error, host)


def _stopped(stop: Interrupted, host: str) -> Outcome:
    from toolkit.verdict.judge import of_stop

    return of_stop(stop.number, host)


class _OomWatch:
    """When called, returns how many processes the kernel has killed for lack of memory since the attempt began."""

    def __init__(self) -> None:
        self._root = Path("/")
        self.begin()

    def begin(self) -> None:
        self._before = host.oom_kills(self._root)

    def __call__(self) -> Memory:
        root, now = self._root, host.oom_kills(self._root)
        kills = None if now is None or self._before is None else now - self._before
        return Memory(oom_kills=kills, peak_bytes=host.memory_peak_bytes(root), limit_bytes=host.memory_bytes(root))


def _install(job: Job, supervisor: Supervisor, log: Log) -> Ended | None:
    """Install the job's requirements; return how that ended, None if it succeeded."""
    with supervisor.signals.interrupting():
        installing = install.phase(job)
    if installing is None:
        return None
    # The file is not removed: another train may wait for its lock, and a third would then lock a new file.
    lock = Locked(path=job.folders.scratch.parent / f"toolkit-{os.getuid()}-pip.lock", within_s=job.settings.join_s)
    ended = supervisor.run(msgspec.structs.replace(installing, needs=(lock,)))
    if ended is None:
        log.info("requirements were installed before in this container: skipped")
    elif not ended.exits or not all(e.ok for e in ended.exits) or ended.stopped_by is not None:
        return ended
    elif installing.skip_if is not None:
        install.remember(installing.skip_if)
    return None


def _with_packages(job: Job, log: Log) -> Job:
    """Return *job* with a folder for its requirements, if the image's own cannot take them."""
    folder = packages.chosen(job) if install.phase(job) is not None else None
    if folder is None:
        return job
    packages.make(folder, log)
    return packages.with_packages(job, folder)


def _check_modules(job: Job, plan: Plan) -> None:
    for module in plan.modules:
        if not packages.is_there(module, job):
            raise UserError(
                f"expected {module} in {job.interpreter}, which {plan.launcher} needs, found none",
                hint=f"Install it in the image (pip install {module}) or name it in requirements.txt.",
            )


def _fitted(spec: ProcessSpec, run_folder: Path, stacks: Path | None, more: dict[str, str], log: Log) -> ProcessSpec:
    """Return *spec* with *more* variables and an environment that execve takes. Variables that do not fit are written
    to a file that the script can read."""
    environ = {**spec.environ, MARKER: run_folder.name, **more}
    if spec.rank is not None or spec.starts_ranks:
        environ |= _shared_with_ranks(run_folder, stacks, log)
    total_bytes = os.sysconf("SC_ARG_MAX") - (LAUNCHER_ADDS_BYTES if spec.starts_ranks else 0)
    kept, spilled = fitting(environ, spec.argv, total_bytes=total_bytes)
    if spilled:
        file = run_folder / "environment.json"
        file.touch(0o600)
        file.write_bytes(msgspec.json.encode(spilled))
        kept["SM_TRAINING_ENV_FILE"] = str(file)
        names = ", ".join(list(spilled)[:8]) + (f" and {len(spilled) - 8} more" if len(spilled) > 8 else "")
        log.warning(f"{names}: too large for an environment; they are in the JSON file SM_TRAINING_ENV_FILE={file}")
    return msgspec.structs.replace(spec, environ=kept)


def _shared_with_ranks(run_folder: Path, stacks: Path | None, log: Log) -> dict[str, str]:
    """Make the folders through which ranks and `train` exchange files; return the variables that name them.

    On a full disk the job runs without them.
    """
    environ = {}
    try:
        (run_folder / STATUS_FOLDER).mkdir()
        status_pages.create_stop_page(run_folder / STATUS_FOLDER)
        environ["TOOLKIT_STATUS_FOLDER"] = str(run_folder / STATUS_FOLDER)
        if stacks is not None:
            stacks.mkdir(exist_ok=True)
            environ["TOOLKIT_STACKS"] = f"{STACKS_SIGNAL}:{stacks}"
    except OSError as error:
        log.warning(
            f"{run_folder}: {error.strerror or error}; toolkit.status and stacks of hangs are not to be had in this run"
        )
    return environ


def _console(job: Job, line_monitors: LineMonitors, log: Log, outlets: Outlets, *, terminal: bool) -> Console:
    ours = job.settings
    several = launchers.world_size(job) > 1
    files = ours.log_files == "on" or (ours.log_files == "auto" and several)
    tags = ours.log_prefix == "auto" and launchers.name_for(job) == "mpi"
    return Console(
        host=job.cluster.current,
        prefix_ranks=ours.log_prefix == "rank" or (ours.log_prefix == "auto" and several) or tags,
        tags=tags,
        make_monitor=line_monitors.monitor,
        files=job.folders.output_data / "logs" if files else None,
        file_bytes=ours.log_file_mib << 20,
        note=log.warning,
        outlets=outlets,
        progress=ours.log_progress,
        terminal=terminal,
    )


def _say_plan(job: Job, plan: Plan, log: Log) -> None:
    where = f"host {job.cluster.current}"
    if job.cluster.size > 1:
        where += f" (host {job.cluster.rank + 1} of {job.cluster.size}, {plan.role})"
    name = f"job {job.name}, " if job.name else ""
    log.info(f"toolkit {toolkit.__version__}: {name}{where}, launcher {plan.launcher}, world size {plan.world_size}")
    if plan.choice:
        log.info(plan.choice)
    for note in plan.notes:
        log.warning(note)
