"""Runs a job of `toolkit run`: prepares it, starts its hosts, after a spot interruption again, and reports the end."""

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext
from typing import Any

from msgspec.structs import replace

from toolkit.commands.simulate import (
    catalogue,
    check,
    collect,
    containers,
    earlier,
    opt_ml,
    owners,
    preflight,
    remote,
    request,
    runner,
    stage,
)
from toolkit.commands.simulate.display import Display
from toolkit.commands.simulate.earlier import EarlierResults
from toolkit.commands.simulate.lifecycle import JobEnd, Lifecycle, Reason, job_end, next_interrupt, next_start
from toolkit.commands.simulate.report import failed_host, failure_reason, first_failure, host_end, moment, no_space
from toolkit.commands.simulate.reserve import Reserve
from toolkit.commands.simulate.simulation import Simulation, UserStops
from toolkit.commands.simulate.spot import JobStarts, outlives
from toolkit.commands.simulate.stage import StagedHost
from toolkit.errors import PlatformError, ToolkitError, UserError, explain_path_error
from toolkit.job.file.job_file import JobFile
from toolkit.job.outcome import Outcome
from toolkit.job.report import REPORT, HostReport, JobReport
from toolkit.log import Log
from toolkit.metrics.sample import json_value
from toolkit.train.provenance.commit import find_commit
from toolkit.train.supervise.signals import Signals

ENGINES_OWN = (125, 126, 127)  # Exit codes of `docker run` if the container's program was not started.


def simulate(
    job_file: JobFile,
    user_environ: Mapping[str, str],
    log: Log,
    make_display: Callable[[], Display],
    *,
    detached: bool = False,
) -> JobReport:
    """Run the job of *job_file* to its end and return its report, which is also written to JOBDIR/job.json.

    *user_environ*: the person's environment. *make_display* is called when the job starts. *detached*: nobody waits for
    this process, and its console is JOBDIR/console.log.

    Raises:
        ContractError, UserError, PlatformError: the job could not be started.
    """
    check.check(job_file)
    preflight.examine(job_file, user_environ)
    checkpoints = () if job_file.checkpoints is None else (job_file.checkpoints,)
    heirs = {
        folder: owners.heir(folder) for folder in (job_file.run.job_dir, *checkpoints)
    }  # Before any folder is made.
    lock = stage.claim(job_file.run.job_dir)
    try:
        earlier_results, reserve = EarlierResults(job_file.run.job_dir), Reserve(job_file.run.job_dir)
        earlier.refuse(job_file.run.job_dir, replace=job_file.run.replace)
        try:
            earlier_results.put_aside(log)
            reserve.take()
            runner.write(lock, job_file.run.job_dir, detached=detached)
            job = _Job(job_file, user_environ, log, reserve)
            engines = containers.Engine(job_file, user_environ) if job_file.run.backend == "docker" else nullcontext()
            prepared = ExitStack()
            engine = prepared.enter_context(engines)
            earlier_results.remove()
        except BaseException as error:
            earlier_results.put_back()
            if isinstance(error, OSError):
                raise (explain_path_error(error, "the job cannot be prepared there") or error) from None
            raise
        with prepared:
            job.run(engine, make_display)
            starved = {host for host in job_file.hosts if engine is not None and engine.short_of_memory(host)}
        return job.end(starved)
    finally:
        for folder, heir in heirs.items():
            if heir is not None:
                owners.hand_over(folder, heir)
        os.close(lock)


class _Job:
    """A job from the preparation of its first hosts to its report."""

    def __init__(self, job_file: JobFile, user_environ: Mapping[str, str], log: Log, reserve: Reserve) -> None:
        self._reserve = reserve
        self._user_environ = user_environ = {**_find_provenance(job_file, user_environ), **user_environ}
        self._job_file = remote.fetch_channels(job_file, user_environ, log)
        self._content = stage.submit(self._job_file, log)
        self._staged = opt_ml.give_own_opt_ml(
            job_file, stage.stage_hosts(self._job_file, user_environ, self._content, log), log
        )
        self._log = log
        started_s, began_s = time.time(), time.monotonic()
        self._starts = JobStarts(job_file, started_s=started_s, began_s=began_s)
        self._last: Simulation | None = None
        spot = bool(job_file.run.interrupts) or job_file.run.max_wait_s is not None
        begun = moment(started_s)
        self._begun = JobReport(
            name=job_file.name,
            status="InProgress",
            start_time=begun,
            max_run_seconds=job_file.run.max_run_s,
            managed_spot=spot,
        )
        self._write(self._begun)
        request.write(job_file, self._user_environ)
        self._record(started_s)

    def run(self, engine: containers.Engine | None, make_display: Callable[[], Display]) -> None:
        """Run the job to its end, with all its starts."""
        if self._job_file.run.interrupts and not outlives(self._job_file, self._staged):
            self._log.warning(
                "nothing outlives an interruption, so the job then starts from scratch. To keep /opt/ml/checkpoints:"
                " --checkpoints DIR"
            )
        display = make_display()
        try:
            with Signals() as signals:
                requests = UserStops(signals)
                while self._runs_again(display, requests):
                    self._prepare_next(engine)
        finally:
            display.close()

    def end(self, starved: set[str]) -> JobReport:
        """Collect the results and return the report, which is also written. *starved*: hosts that ran out of memory."""
        report = self._report(starved)
        self._reserve.end()
        try:
            self._write(report)
        except OSError as error:  # The job's result does not change.
            self._log.error(f"{self._job_file.run.job_dir / REPORT} could not be written: {error.strerror}")
        return report

    def _runs_again(self, display: Display, requests: UserStops) -> bool:
        """Run one start of the hosts to its end; return whether another one follows, now that its hosts are there."""
        starts, run = self._starts, self._job_file.run
        due = next_interrupt(run, starts.trained_s)
        self._last = last = Simulation(
            self._job_file.name,
            self._staged,
            next_start(self._job_file.hosts, run, trained_s=starts.trained_s, passed_s=starts.passed_s(starts.began_s)),
            self._log,
            display,
            requests,
            reserve=self._reserve,
            began_s=starts.began_s,
            passed_s=starts.passed_s(starts.began_s),
        )
        last.on_reason = self._report_phase
        try:
            last.run()
        finally:
            last.clear()
        starts.ended(last.ended_s)
        if last.lifecycle.reason != "interrupted" or due is None:
            return False
        last.sweep()
        hosts = _host_reports(self._job_file, last.lifecycle, collect.outcomes(self._staged))
        starts.interrupted(last.stopped_s, hosts)
        self._report_phase("interrupted")
        return self._wait_for_hosts(last, due.wait_s, requests)

    def _wait_for_hosts(self, last: Simulation, wait_s: float, requests: UserStops) -> bool:
        """Wait *wait_s* seconds for new hosts; return False if the job is stopped before."""
        starts, run = self._starts, self._job_file.run
        self._log.info(
            f"interruption {len(starts.interruptions)}: all hosts have ended after {starts.trained_s:.1f} s of"
            f" training; new ones come in {wait_s:g} s"
        )
        until: list[tuple[float, Reason]] = [(last.ended_s + wait_s, "")]
        limits: tuple[tuple[float | None, Reason], ...] = ((run.stop_after_s, "time"), (run.max_wait_s, "max-wait"))
        until += [(starts.first_s + after_s, reason) for after_s, reason in limits if after_s is not None]
        until_s, reason = min(until, key=lambda limit: limit[0])
        if numbers := requests.wait(until_s):
            reason = last.note_late_stop(numbers[0])
        if not reason:
            return True
        last.lifecycle.reason = reason
        last.ended_s = time.monotonic()
        starts.waited(last.ended_s)
        return False

    def _prepare_next(self, engine: containers.Engine | None) -> None:
        """Give the next start new hosts. Of the last one, only the checkpoints stay.

        Raises:
            PlatformError: a file cannot be read or written; job.json then says that the job failed.
        """
        entered = any(host.enter for host in self._staged)
        try:
            if engine is not None:
                engine.renew()
            self._starts.put_aside()
            staged = stage.stage_hosts(self._job_file, self._user_environ, self._content, self._log)
        except (OSError, ToolkitError) as error:
            lost = error if isinstance(error, ToolkitError) else PlatformError(str(error), where="toolkit run")
            self._write(
                self._so_far(
                    status="Failed",
                    secondary_status="Failed",
                    failure_reason=f"InternalServerError: the job could not be started again: {lost}",
                    exit_code=lost.exit_code,
                    end_time=self._starts.moment(time.monotonic()),
                )
            )
            raise lost from None
        self._staged = opt_ml.entering(staged) if entered else staged
        self._starts.resumed(time.monotonic())
        self._log.info(f"start {len(self._starts.interruptions) + 1} of the job, on new hosts")
        self._report_phase("")

    def _report_phase(self, reason: Reason) -> None:
        """Write into job.json what the job is at: it trains, is interrupted, or is being stopped."""
        if reason == "failed":
            return
        secondary = "" if not reason else "Interrupted" if reason == "interrupted" else "Stopping"
        try:
            self._write(self._so_far(secondary_status=secondary))
        except OSError:
            pass  # A full disk must not keep the job from being stopped.

    def _so_far(self, **fields: Any) -> JobReport:
        starts = self._starts
        return replace(
            self._begun, waited_seconds=round(starts.waited_s, 3), interruptions=starts.interruptions, **fields
        )

    def _write(self, report: JobReport) -> None:
        collect.write_json(self._job_file.run.job_dir / REPORT, report)

    def _record(self, started_s: float) -> None:
        """Enter the job into the catalogue; without it, `toolkit attach` and the others still take the job's folder."""
        folder = self._job_file.run.job_dir.absolute()
        entry = catalogue.CatalogueEntry(name=self._job_file.name, folder=folder, recorded_s=started_s)
        try:
            catalogue.record(self._user_environ, entry)
        except OSError as error:
            self._log.debug(f"the catalogue of jobs cannot be written: {error}; the job's folder names it as well")

    def _report(self, starved: set[str]) -> JobReport:
        assert self._last is not None
        job_file, staged, lifecycle, starts = self._job_file, self._staged, self._last.lifecycle, self._starts
        outcomes = collect.outcomes(staged)
        first = first_failure(lifecycle, outcomes)
        end: JobEnd = job_end(lifecycle, interrupted=self._last.by_person, first=first)
        refused = _refused(staged, lifecycle, outcomes)
        if end.host in refused:  # The container did not start: a user's error, as a wrong image.
            end = replace(end, exit_code=UserError.exit_code)
        gathered = collect.collect(job_file.run.job_dir, staged, self._log, checkpoints=job_file.checkpoints)
        last = gathered.last
        full = ""
        if self._reserve.is_disk_full() if end.status == "Failed" else gathered.is_disk_full:
            full = no_space(
                job_file.run.job_dir, end, collect.failure_text(staged, end.host), self._last.last_line(end.host)
            )
            end = replace(end, status="Failed", secondary="Failed", exit_code=PlatformError.exit_code)
        training_s = round(starts.passed_s(self._last.ended_s), 3)
        return self._so_far(
            status=end.status,
            secondary_status=end.secondary,
            failure_reason=f"ClientError: {refused[end.host]}"
            if end.host in refused
            else full or failure_reason(end, end.host in lifecycle.vanished, collect.failure_text(staged, end.host)),
            failed_host=failed_host(end, outcomes),
            exit_code=end.exit_code,
            hosts=_host_reports(job_file, lifecycle, outcomes, starved, refused),
            end_time=starts.moment(self._last.ended_s),
            training_seconds=training_s,
            billable_seconds=round(round(starts.trained_s, 3) * len(job_file.hosts), 3),
            metrics={name: json_value(last[name].value) for name, _ in job_file.metric_definitions if name in last},
            misread=collect.misread(job_file.metric_definitions),
            artifacts=gathered.artifacts,
            notes=(*gathered.notes, *self._last.lost(), *starts.missed()),
        )


def _find_provenance(job_file: JobFile, user_environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell the hosts their image, the commit of their source, and the ID of their run in
    trackers: another for each job, also where a name is used again, and the same for all starts of this one."""
    image = job_file.run.image if job_file.run.backend == "docker" else None
    is_named = "name" in job_file.request  # A name that nobody gave has the time in it.
    own = f"-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}" if is_named else ""
    variables = {
        "TOOLKIT_SOURCE_COMMIT": find_commit(job_file.source, dict(user_environ)),
        "TOOLKIT_IMAGE": "" if image is None else containers.image_with_digest(image, user_environ),
        "TOOLKIT_TRACKER_RUN": f"{job_file.name}{own}",
    }
    return {name: value for name, value in variables.items() if value}


def _host_reports(
    job_file: JobFile,
    lifecycle: Lifecycle,
    outcomes: Mapping[str, Outcome],
    starved: Set[str] = frozenset(),
    refused: Mapping[str, str] | None = None,
) -> dict[str, HostReport]:
    """Return how each host ended. *starved*: those that ran out of memory; *refused*: from `_refused`."""
    hosts = {}
    for host in job_file.hosts:
        outcome = outcomes.get(host)
        vanished = host in lifecycle.vanished
        cause = "killed by the kernel: the container was out of memory" if host in starved else ""
        cause = cause or (refused or {}).get(host, "")
        hosts[host] = HostReport(
            exit_code=lifecycle.codes.get(host),
            status="vanished" if vanished else outcome.status if outcome else "",
            cause="killed with everything on it" if vanished else host_end(outcome, host) if outcome else cause,
        )
    return hosts


def _refused(staged: Sequence[StagedHost], lifecycle: Lifecycle, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the engine's message for each host whose container it could not start.

    `docker run` exits with 125, or with 126 or 127 if the image has no `train`. A `train` that ran has written an
    outcome.
    """
    messages = {}
    for host in staged:
        name = host.setup.host
        if host.container and lifecycle.codes.get(name) in ENGINES_OWN and name not in outcomes:
            message = collect.last_words(staged, name) or f"docker ended with {lifecycle.codes[name]}"
            messages[name] = f"the container was not started: {message}"
    return messages
