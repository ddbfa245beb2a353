"""The steps of `train`, in order: from the job's documents to the reported outcome. Lower packages decide."""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import toolkit
from toolkit import settings
from toolkit.errors import PlatformError, ToolkitError, name_place
from toolkit.job.job import Job
from toolkit.job.outcome import MemoryUse, Outcome, PhaseEnd
from toolkit.job.plan import Phase, Plan, quoted
from toolkit.job.restart import Restart
from toolkit.job.scripts import only_script
from toolkit.log import Log
from toolkit.storage.uri import is_remote
from toolkit.train import base_lock, ending, outcomes, plugin, rank_files, requirements, rule_output, within
from toolkit.train.artifacts import folders as job_folders
from toolkit.train.artifacts.scratch import RunFolder
from toolkit.train.attempts import Attempts
from toolkit.train.fit_environment import MARKER, fitted, marked, measured
from toolkit.train.launchers import table as launchers
from toolkit.train.line_monitors import LineMonitors
from toolkit.train.manifest import ManifestWriter
from toolkit.train.notifier import Notifier
from toolkit.train.outcomes import OomWatch
from toolkit.train.platforms import table as platforms
from toolkit.train.preparation_timing import PreparationTiming
from toolkit.train.probe import look
from toolkit.train.services import beside
from toolkit.train.source import classify, fetch
from toolkit.train.supervise.console import Outlets
from toolkit.train.supervise.phases import run_phase
from toolkit.train.supervise.signals import Interrupted, Signals
from toolkit.train.supervise.stop_request import STATUS_FOLDER
from toolkit.train.supervise.supervisor import Supervisor
from toolkit.train.supervision import make_console, make_hang_settings

if TYPE_CHECKING:
    from toolkit.train.coordinator import Coordinator
    from toolkit.train.entry_point import ScriptRequest
    from toolkit.train.slow_ranks import SlowRanks
    from toolkit.train.step_times import StepTimes

# The most characters of a command in the log: about 200 hyperparameters.
MOST_SHOWN = 8_000


def train(
    environ: Mapping[str, str],
    *,
    interpreter: str,
    log: Log,
    signals: Signals | None = None,
    platform: platforms.Platform | None = None,
) -> int:
    """Run the job that *environ* and its documents describe; return the exit code (docs/exit-codes.md).

    Whatever happens, the outcome is reported once, and an error in a report does not change it.
    *signals*: those installed at the start of the process. *platform*: None for the one that *environ* comes from.
    """
    if signals is None:
        with Signals(last=True) as signals:
            return train(environ, interpreter=interpreter, log=log, signals=signals, platform=platform)
    platform = platform or platforms.detect(environ)
    folders = platform.folders(environ)
    log.hide(environ)
    nested = within.refusal(environ.get(MARKER, ""), folders)
    if nested is not None:
        log.error(str(nested))  # Report nothing: the job's files belong to the run that is active.
        return nested.exit_code
    try:
        lock = base_lock.take(folders.base)
    except PlatformError as error:
        log.error(str(error))  # As above.
        return error.exit_code
    outlets = Outlets()
    log.say_through(outlets.stderr.say, outlets.flush)
    log.attempt("an earlier run's files could not be removed", lambda: platform.clear_stale(folders, log), None)
    afterwards: list[Callable[[], None]] = []
    notifier = Notifier(settings.find_address(environ), log)
    outcome = _outcome(platform, dict(environ), interpreter, signals, outlets, log, afterwards, notifier)
    ending.report(platform, folders, outcome, outlets, log)
    log.attempt("the end could not be told", lambda: notifier.tell_end(outcome), None)
    if outcome.status != "stopped":  # A platform that stops a job does not wait.
        for step in afterwards:
            log.attempt("what follows the job's end failed", step, None)
    log.attempt("the message of the end could not be waited for", lambda: notifier.wait(outcome), None)
    if outcome.status == "stopped":
        log.attempt("a partly fetched source could not be removed", lambda: fetch.clear(folders.code), None)
    if lock is not None:
        log.attempt("the base's lock could not be released", lambda: os.close(lock), None)
    return outcome.exit_code


def launch(request: "ScriptRequest", *, interpreter: str, log: Log, signals: Signals) -> Outcome:
    """Run what a framework plug-in asks for (train/entry_point.py) and return the outcome; the plug-in reports it."""
    from toolkit.train.entry_point import environ_of

    environ = request.environ
    platform = platforms.detect(environ)
    log.hide(environ)
    log.hide(request.variables)
    outlets = Outlets()
    log.say_through(outlets.stderr.say, outlets.flush)
    if within.is_inside(environ):
        log.level = 40  # The outer `train` has warned of the job's documents already.
    inner = environ_of(environ, platform.folders(environ).code)
    notifier = Notifier("", log)
    outcome = _outcome(platform, inner, interpreter, signals, outlets, log, [], notifier, request=request)
    log.attempt("the last lines could not be written", log.flush, None)
    return outcome


def prepared(
    platform: platforms.Platform, environ: dict[str, str], interpreter: str, log: Log, *, needs_script: bool = True
) -> Job:
    """Return the job; its script is not in place yet. *needs_script* False: nothing need name one.

    Raises:
        ContractError: a document or setting is missing or wrong.
    """
    unknown = settings.unknown(environ)
    if unknown:
        log.warning(unknown)
    own_settings = settings.read(environ)
    machine = look.probe_machine(environ)
    for note in machine.notes:
        log.warning(note)
    if machine.deaf_init:
        log.warning(machine.deaf_init)
    if machine.other_train:
        log.warning(f"train on PATH is {machine.other_train}, not this toolkit. Install this toolkit last")
    job, unknown = platforms.read_job(
        platform, environ, own_settings, machine, log, interpreter=interpreter, needs_script=needs_script
    )
    if unknown:
        log.warning(unknown)
    log.brief = own_settings.log_failure == "brief"
    return job


def with_script(job: Job, log: Log) -> Job:
    """Return *job* with its script from the code folder.

    Raises:
        UserError: the entry point does not exist, or cannot be run.
    """
    if job.script is not None:  # The platform has it.
        return job
    entry = job.spec.entry or (None if job.spec.plugin else only_script(job.folders.code))
    if entry and not job.spec.entry:
        log.info(f"nothing names a script: {entry} is the only one in {job.folders.code}")
    with name_place(job.spec.entry_from):
        script = classify.classify(job.folders.code, entry, job.spec.plugin, job.argument_style)
    if script.flaw:
        log.warning(script.flaw)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, entry=entry), script=script)


def _outcome(
    platform: platforms.Platform,
    environ: dict[str, str],
    interpreter: str,
    signals: Signals,
    outlets: Outlets,
    log: Log,
    afterwards: list[Callable[[], None]],
    notifier: Notifier,
    request: "ScriptRequest | None" = None,
) -> Outcome:
    """Run the job and return its outcome; *afterwards* gets what is to be done once that is reported.

    *request*: what a framework plug-in asks for.
    """
    me = ""
    try:
        with signals.interrupting():
            notifier.check()
            job = prepared(platform, environ, interpreter, log, needs_script=request is None)
            me = job.cluster.current
            notifier.begin(job)
            if request is not None:
                from toolkit.train.entry_point import job_of_request

                job = job_of_request(job, request)
            job = look.with_libraries(job)
            job_folders.prepare(job.folders, log)
            if rule_output.is_asked(job):
                afterwards.append(partial(rule_output.write, job, log))
        terminal = environ.get("TERM", "dumb") != "dumb"
        outcome = _run(job, signals, outlets, notifier, log, terminal=terminal)
        if job.spec.serves_tensorflow and job.cluster.is_leader and outcome.status == "succeeded":
            log.attempt("the saved model could not be checked", lambda: _warn_of_model(job, log), None)
        return outcome
    except (Interrupted, Exception) as error:  # noqa: BLE001 - faults of `train` are reported, too
        return outcomes.of_any(error, me)


def _warn_of_model(job: Job, log: Log) -> None:
    from toolkit.train.artifacts import saved_model

    for sentence in saved_model.warnings(job.folders.model):
        log.warning(sentence)


def _run(job: Job, signals: Signals, outlets: Outlets, notifier: Notifier, log: Log, *, terminal: bool) -> Outcome:
    """Run *job* on this host, together with the other hosts; return the outcome, with a link that of the whole job.

    *terminal*: if the console is a terminal, it understands control sequences.
    """
    run = RunFolder(job.folders.scratch, f"{os.getpid()}-{time.monotonic_ns():x}", log)
    run_folder = run.plain
    job = msgspec.structs.replace(job, folders=msgspec.structs.replace(job.folders, scratch=run.scratch))
    memory = OomWatch()
    coordinator = None
    closing: list[tuple[str, Callable[[], None]]] = [("the run's folder", run.close)]
    try:
        linked = len(job.cluster.hosts) > 1 and job.settings.link == "on"
        with signals.interrupting():
            step_times = _step_times(job, run_folder, linked=linked)
            line_monitors = LineMonitors(job, log, step_times, run_folder, notifier.tell_finding)
            if linked:
                # Sockets and hashes: 8 ms, which only a job with several hosts pays.
                from toolkit.train.coordinator import Coordinator

                own_text = partial(_with_own_text, job, run_folder)
                coordinator = Coordinator(job, log, memory, step_times, own_text, _slow_ranks(job, run_folder, log))
                closing.append(("the link to the other hosts", coordinator.close))
        closing.append(("metrics and log rules", line_monitors.close))
        if not linked and len(job.cluster.hosts) > 1 and job.settings.restarts:
            log.warning(
                "TOOLKIT_RESTARTS is ignored: without the link (TOOLKIT_LINK=off) hosts cannot restart together"
            )
        supervisor = Supervisor(
            signals=signals,
            console=make_console(job, line_monitors, log, outlets, terminal=terminal),
            log=log,
            run_folder=run_folder,
            marker=f"{MARKER}={run_folder.name}",
            python=job.interpreter,
            alone=len(job.cluster.hosts) == 1,
            link=coordinator,
            hang=make_hang_settings(job, run_folder),
            line_monitors=line_monitors,
            once_running=partial(outcomes.import_for_the_end, log),
            on_hang=notifier.tell_hang,
        )
        notifier.set_apart(supervisor.apart.add)
        log.say_through(supervisor.console.stderr.say, supervisor.finish)
        attempts = Attempts(job, run_folder, line_monitors, log)
        closing.append(("the job's port", attempts.rendezvous.close))
        manifest = ManifestWriter(supervisor, log)
        closing.append(("the manifest", manifest.end))
        outcome = _attempts(job, supervisor, attempts, memory, coordinator, manifest, notifier, log)
        outcome = _with_uploads(job, outcome, supervisor, log)
        if job.exports.trackers():
            _finish_trackers(job, outcome, attempts.number + 1, supervisor, log)
        return outcome
    finally:
        for part, close in reversed(closing):
            log.attempt(f"{part} could not be closed", close, None)


def _with_uploads(job: Job, outcome: Outcome, supervisor: Supervisor, log: Log) -> Outcome:
    """Upload what the script left for storage; return *outcome*, with a note if that failed."""
    if not (job.settings.checkpoint_uri or job.spec.intermediate_uri):
        return outcome
    from toolkit.train import transfers

    upload = partial(transfers.finish, job, outcome, supervisor, log)
    return log.attempt("the last upload failed", upload, outcome)


def _finish_trackers(job: Job, outcome: Outcome, attempt: int, supervisor: Supervisor, log: Log) -> None:
    """Send the trackers of *job* how it ended (docs/metrics-out.md)."""
    from toolkit.train import trackers

    send = partial(trackers.finish, job, outcome, attempt, supervisor, log)
    log.attempt("trackers could not be told how the job ended", send, None)


def _attempts(
    job: Job,
    supervisor: Supervisor,
    attempts: Attempts,
    memory: OomWatch,
    coordinator: "Coordinator | None",
    manifest: ManifestWriter,
    notifier: Notifier,
    log: Log,
) -> Outcome:
    """Run the script, and restart it as long as its failures are worth it (docs/restart.md); return the outcome."""
    phase, outcome = _first(job, supervisor, attempts, memory, manifest, log)
    while True:
        decide = partial(_decided, supervisor, attempts, coordinator, outcome)
        decided = log.attempt("it could not be decided how the job continues", decide, outcome)
        if isinstance(decided, Outcome):
            if job.spec.plugin is not None:
                decided = plugin.with_its_scripts_text(decided, supervisor.run_folder / STATUS_FOLDER)
            return log.attempt(
                "the attempts could not be added to the outcome", partial(attempts.with_restarts, decided), decided
            )
        assert phase is not None  # No restart unless every host has started its script.
        attempts.begin(decided)
        notifier.tell_restart(decided)
        memory.begin()
        if supervisor.hang is not None:
            supervisor.hang = make_hang_settings(job, supervisor.run_folder, decided.attempt)
        outcome = _attempt(job, phase, supervisor, attempts, memory, log)


def _decided(
    supervisor: Supervisor, attempts: Attempts, coordinator: "Coordinator | None", outcome: Outcome
) -> Outcome | Restart:
    """Return the job's outcome for this host, whose own end is *outcome*, or the restart for another attempt."""
    if coordinator is not None:
        return coordinator.finish_job(supervisor, outcome, attempts.steps())
    return attempts.alone(outcome, stopped_by=supervisor.stopped_by)


def _first(
    job: Job,
    supervisor: Supervisor,
    attempts: Attempts,
    memory: Callable[[], MemoryUse],
    manifest: ManifestWriter,
    log: Log,
) -> tuple[Phase | None, Outcome]:
    """Prepare this host and run attempt 0; return the script's phase (None: it was not reached) and the outcome."""
    phase = None
    interrupting = supervisor.signals.interrupting
    timing = PreparationTiming()
    try:
        if is_remote(job.spec.source or ""):
            from toolkit.train import transfers

            with timing("source"):
                job = transfers.with_source(job, supervisor, log)
            if supervisor.machine.job.ends:
                return None, outcomes.of_end(job, _not_begun(supervisor))
        if job.machine.gpu_trouble:
            raise _no_gpu(job)
        if any(channel.uri for channel in job.spec.channels):
            from toolkit.train import transfers

            with timing("channels"):
                transfers.fetch_channels(job, supervisor, log)
            if supervisor.machine.job.ends:
                return None, outcomes.of_end(job, _not_begun(supervisor))
        with interrupting():
            with timing("source"):
                if not (job.nested and fetch.is_placed(job, log)):
                    fetch.place(job, log)
            job = requirements.with_packages(with_script(job, log), log)
            attempts.read_rules()
            plan = attempts.rendezvous.plan(job)
            _say_plan(job, plan, log)
        with timing("requirements"):
            ended = requirements.install(job, supervisor, log)
        if ended is not None:
            return None, outcomes.of_end(job, msgspec.structs.replace(ended, memory=memory()))
        with interrupting():
            requirements.check_modules(job, plan)
        if job.settings.checkpoint_uri:
            from toolkit.train import transfers

            with timing("checkpoints"):
                transfers.restore(job, supervisor, log)
        job = msgspec.structs.replace(job, preparations=timing.list_preparations())
        phase = plan.phase
    except Interrupted as stop:
        supervisor.notice()  # It sends the stop to the other hosts.
        return None, outcomes.of_stop(stop, job.cluster.current)
    except ToolkitError as error:
        return None, outcomes.of_error(error, job.cluster.current)
    log.attempt("the manifest could not be begun", partial(manifest.begin, job), None)
    return phase, _attempt(job, phase, supervisor, attempts, memory, log)


def _no_gpu(job: Job) -> PlatformError:
    return PlatformError(
        f"expected the host's GPUs, found that they cannot be used: {job.machine.gpu_trouble}",
        hint="Restart or replace the host. CUDA_VISIBLE_DEVICES= (empty) runs the job on the CPU.",
    )


def _not_begun(supervisor: Supervisor) -> PhaseEnd:
    """Return the end of a host that has not begun anything when the job ended."""
    state = supervisor.machine.job
    return PhaseEnd(
        name="fetch",
        failure_kind="ExecuteUserScriptError",
        command=(),
        exits=(),
        main="fetch",
        stopped_by=supervisor.stopped_by,
        stopped_at_ns=state.stopped_at_ns,
        peer_failed=state.peer_failed,
    )


def _attempt(
    job: Job, phase: Phase, supervisor: Supervisor, attempts: Attempts, memory: Callable[[], MemoryUse], log: Log
) -> Outcome:
    """Run an attempt on this host and return its outcome; a ToolkitError becomes an outcome, too."""
    try:
        phase = attempts.rendezvous.phase(phase)
        more = {**attempts.environ, **measured(job)}
        main = fitted(phase.main, supervisor.run_folder, supervisor.hang, more, log)
        log.info(f"Invoking script with the following command: {_shown(main.argv, log)}")
        services = (*phase.services, *beside(job, supervisor.run_folder, attempts.number + 1, log))
        services = tuple(marked(service, supervisor.run_folder) for service in services)
        traces = rank_files.RequestedTraces(job)
        ended = run_phase(supervisor, msgspec.structs.replace(phase, main=main, services=services))
        assert ended is not None
        traces.say_if_none(log)
        ended = msgspec.structs.replace(ended, memory=memory(), attempt=attempts.number)
        outcome = attempts.rendezvous.with_holder(outcomes.of_end(job, ended))
        if job.compiler is not None:
            pids = [exit.pid for exit in ended.exits]
            compilation = rank_files.read_compilation(supervisor.run_folder / STATUS_FOLDER, pids, log)
            outcome = msgspec.structs.replace(outcome, compiler=compilation)
        return _with_own_text(job, supervisor.run_folder, outcome)
    except ToolkitError as error:
        return outcomes.of_error(error, job.cluster.current)


def _with_own_text(job: Job, run_folder: Path, outcome: Outcome) -> Outcome:
    return outcome if job.spec.plugin is None else plugin.with_its_own_text(outcome, run_folder / STATUS_FOLDER)


def _shown(argv: tuple[str, ...], log: Log) -> str:
    """Return a command for the log; of a very long one only the beginning. It is masked before it is cut, since a mask
    does not match half a secret."""
    text = log.mask(" ".join(quoted(token) for token in argv))
    more = len(text) - MOST_SHOWN
    return (
        text if more <= 0 else f"{text[:MOST_SHOWN]} ... ({more:,} characters more: outcome.json, toolkit check --json)"
    )


def _step_times(job: Job, run_folder: Path, *, linked: bool) -> "StepTimes | None":
    """Return the comparison of ranks' step times, None if no rank has peers to compare it with."""
    if not linked and launchers.world_size(job) == 1:
        return None
    from toolkit.train.step_times import StepTimes  # 5 ms, which only a job with several ranks pays.

    return StepTimes(job, run_folder, linked=linked)


def _slow_ranks(job: Job, run_folder: Path, log: Log) -> "SlowRanks | None":
    """Return the comparison of the ranks of all hosts, None without a monitor, which measures them."""
    if job.monitor is None:
        return None
    from toolkit.train.slow_ranks import SlowRanks

    return SlowRanks(job, run_folder, log)


def _say_plan(job: Job, plan: Plan, log: Log) -> None:
    place = f"host {job.cluster.current}"
    if job.cluster.size > 1:
        place += f" (host {job.cluster.rank + 1} of {job.cluster.size}, {plan.role})"
    name = f"job {job.spec.name}, " if job.spec.name else ""
    log.info(f"toolkit {toolkit.__version__}: {name}{place}, launcher {plan.launcher}, world size {plan.world_size}")
    if plan.choice:
        log.info(plan.choice)
    if job.compiler is not None and job.compiler.compile == "auto" and job.compiler.budget_s is not None:
        log.info(
            f"TOOLKIT_COMPILE=auto: compiling may cost this job up to {job.compiler.budget_s:g} s"
            " (TOOLKIT_COMPILE_BUDGET_S), before it is known whether compiled steps are faster"
        )
    for note in plan.notes:
        log.warning(note)
