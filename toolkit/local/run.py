"""Simulates the platform: starts a `train` for each host, relays its output, stops or kills it, and reports the end.

One thread runs one poll loop. lifecycle.py decides; this file acts on processes, pipes, clocks and signals. A host is
its `train` and all processes below it, found by the base folder in their environments: all processes that the platform
would lose with a machine.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from msgspec.structs import replace

from toolkit.errors import UserError
from toolkit.exit_codes import of_signal
from toolkit.job.outcome import Outcome
from toolkit.job.report import HostReport, JobReport
from toolkit.jobfile.spec import JobFile
from toolkit.local import catalogue, check, collect, containers, feed, opt_ml, owners, remote, runner, stage
from toolkit.local.display import Display
from toolkit.local.host import ContainedHost, Host
from toolkit.local.lifecycle import JobEnd, Lifecycle, Order, job_end
from toolkit.local.progress import JobProgress
from toolkit.local.report import (
    accused,
    failure_reason,
    first_failure,
    moment,
    own_end,
)
from toolkit.local.stage import Staged
from toolkit.local.stream import HostStream
from toolkit.log import Log
from toolkit.metrics.sample import json_value
from toolkit.supervise.bars import collapsed
from toolkit.supervise.children import fork_call, reap, send
from toolkit.supervise.kernel import prctl
from toolkit.supervise.signals import Signals, StopRequests, stops

ENGINES_OWN = (125, 126, 127)  # Exit codes of `docker run` if the container's program was not started.
DRAIN_S = 2.0  # How long the pipes of a host are still read after its end.
LOOK_S = 1.0  # Interval at which the progress is shown.
BARS_S = 0.25  # The same while progress bars move.
READ_BYTES = 1 << 16


def simulate(
    asked: JobFile, own: Mapping[str, str], log: Log, make_display: Callable[[], Display], *, detached: bool = False
) -> JobReport:
    """Run the job of *asked* to its end and return its report, which is also written to JOBDIR/job.json.

    *own*: the person's environment. *make_display* is called when the job starts. *detached*: nobody waits for this
    process, and its console is JOBDIR/console.log.

    Raises:
        ContractError, UserError, PlatformError: the job could not be started.
    """
    check.check(asked)  # Before an earlier job's results are removed.
    kept = () if asked.spec.checkpoints is None else (asked.spec.checkpoints,)
    heirs = {folder: owners.heir(folder) for folder in (asked.run.job_dir, *kept)}  # Before any folder is made.
    lock = stage.claim(asked.run.job_dir)
    try:
        runner.write(lock, detached=detached)
        staged = opt_ml.with_own(asked, stage.stage(remote.with_fetched(asked, own, log), own, log), log)
        started_s, began_s = time.time(), time.monotonic()
        job_json = asked.run.job_dir / "job.json"
        begun = JobReport(name=asked.spec.name, status="InProgress", start_time=moment(started_s))
        collect.write_json(job_json, begun)
        _record(asked, own, started_s, log)
        lifecycle = Lifecycle(
            asked.hosts, stop_after_s=asked.run.stop_after_s, max_run_s=asked.run.max_run_s, kills=asked.run.kills
        )
        with containers.Engine(asked, own) if asked.run.backend == "docker" else nullcontext() as engine:
            simulation = Simulation(asked.spec.name, staged, lifecycle, log, make_display())
            simulation.on_stop = lambda: collect.write_json(job_json, replace(begun, secondary_status="Stopping"))
            try:
                simulation.run()
            finally:
                simulation.clear()
            starved = {host for host in asked.hosts if engine is not None and engine.short_of_memory(host)}
        # The wall clock may be set while the job runs: durations are monotonic.
        training_s = round(simulation.ended_s - began_s, 3)
        report = _report(asked, staged, simulation, starved, started_s, training_s, log)
        try:
            collect.write_json(job_json, report)
        except OSError as error:
            log.error(f"{job_json} could not be written: {error.strerror}")  # The job's result does not change.
        return report
    finally:
        for folder, heir in heirs.items():
            if heir is not None:
                owners.hand_over(folder, heir)
        os.close(lock)


def _record(asked: JobFile, own: Mapping[str, str], started_s: float, log: Log) -> None:
    """Enter the job into the catalogue; without it, `toolkit attach` and the others still take the job's folder."""
    entry = catalogue.Entry(name=asked.spec.name, folder=asked.run.job_dir.absolute(), recorded_s=started_s)
    try:
        catalogue.record(own, entry)
    except OSError as error:
        log.debug(f"the catalogue of jobs cannot be written: {error}; the job's folder names it as well")


class Simulation:
    """Starts the hosts of a job, relays their output and carries out the orders of the lifecycle."""

    def __init__(self, name: str, staged: Sequence[Staged], lifecycle: Lifecycle, log: Log, display: Display) -> None:
        self.name = name
        self.lifecycle = lifecycle
        self.interrupted = False
        self.ended_s = 0.0  # Monotonic.
        self.on_stop: Callable[[], None] = lambda: None  # Called once, when the job begins to be stopped.
        self._requests = StopRequests()
        self._log = log
        self._display = display
        self._hosts = {host.setup.host: (ContainedHost if host.container else Host)(host) for host in staged}
        self._feeders: dict[int, feed.Feed] = {}
        self._began_s = time.monotonic()
        self._selector = selectors.PollSelector()

    def run(self) -> None:
        """Start all hosts; return after each has ended and its output is read."""
        with Signals() as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ)
            self._start()
            look_at_s = bars_at_s = 0.0
            while not self.lifecycle.over or any(host.streams for host in self._hosts.values()):
                self._wait(min(bars_at_s, look_at_s) if self._bars_moved else look_at_s)
                for number in signals.take():
                    if stops(number) and self._requests.is_new(number, time.monotonic()):
                        self._asked(number)
                self._reap()
                self._obey(self.lifecycle.due(self._now_s()))
                self._stop_due()
                self._close_late()
                if self._now_s() >= look_at_s:
                    look_at_s = self._now_s() + LOOK_S
                    for host in self._hosts.values():
                        host.look()
                    self._show_progress()
                elif self._bars_moved and self._now_s() >= bars_at_s:
                    bars_at_s = self._now_s() + BARS_S
                    self._show_progress()
            self.ended_s = time.monotonic()
            for host in self._hosts.values():
                host.look()
            self._show_progress()

    def clear(self) -> None:
        """Kill every process, remove every FIFO and close every file of the job, also after an error."""
        for pid in self._feeders:
            send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for name, host in self._hosts.items():
            if name in self.lifecycle.running and host.pid:
                host.vanish()
                os.waitpid(host.pid, 0)
            for fd in host.streams:
                os.close(fd)
            host.log.close()
            for fed in host.staged.feeds:
                feed.withdraw(fed)
            stage.make_writable(host.staged)
        self._selector.close()
        self._display.close()

    def _start(self) -> None:
        # The writers first: their processes must not inherit the hosts' pipes.
        for host in self._hosts.values():
            for fed in host.staged.feeds:
                feed.prepare(fed, 0)
                self._feeders[fork_call(lambda fed=fed: feed.run(fed), prctl=prctl())] = fed  # type: ignore[misc]
        for host in self._hosts.values():
            host.start()
            for fd in host.streams:
                self._selector.register(fd, selectors.EVENT_READ, host)

    def _wait(self, look_at_s: float) -> None:
        times = [look_at_s, self.lifecycle.next_s()]
        for host in self._hosts.values():
            times += [host.closes_at_s, host.stops_at_s]
        timeout_s = max(0.0, min(at_s for at_s in times if at_s is not None) - self._now_s())
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, Host):
                self._read(key.data, key.fd)

    def _read(self, host: Host, pipe: int) -> None:
        stream = host.streams[pipe]
        try:
            piece = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._end_stream(host, pipe)
            return
        for block in stream.feed(piece):
            self._relay(host, stream, block)
        host.heard = True

    def _end_stream(self, host: Host, pipe: int) -> None:
        stream = host.streams.pop(pipe)
        self._relay(host, stream, stream.flush())
        self._selector.unregister(pipe)
        os.close(pipe)

    def _relay(self, host: Host, stream: HostStream, block: bytes) -> None:
        try:
            host.log.write(collapsed(block))
        except OSError:
            pass  # A full disk must not end the job.
        lines = stream.lines(block)
        if lines:
            self._display.lines(host.name, stream.fd, lines)

    def _reap(self) -> None:
        by_pid = {host.pid: host for host in self._hosts.values()}
        for pid, status, _ in reap():
            if pid in by_pid:
                host = by_pid[pid]
                code = of_signal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._ended(host, code)
            elif pid in self._feeders:
                fed = self._feeders.pop(pid)
                self._log.warning(
                    f"channel {fed.fifo.name}: its files can no longer be read; no further epoch is written"
                )

    def _ended(self, host: Host, code: int) -> None:
        vanished = host.name in self.lifecycle.vanished
        host.state = "vanished" if vanished else f"ended with {code}"
        host.closes_at_s = self._now_s() + DRAIN_S
        orders = self.lifecycle.ended(host.name, code, self._now_s())
        if code or vanished:
            self._log.info(f"{host.name} {host.state} after {self._now_s():.1f} s")
        if orders:
            self._log.info("the other hosts are told to stop")
        self._obey(orders)

    def _asked(self, number: int) -> None:
        if not self.lifecycle.reason:
            self.interrupted = number == signal.SIGINT
            self._log.info("stopping the job as the platform would: SIGTERM, SIGKILL after 120 s; once more kills now")
        self._obey(self.lifecycle.asked_to_stop(self._now_s()))

    def _obey(self, orders: Sequence[tuple[Order, str]]) -> None:
        if orders and self.lifecycle.reason in ("asked", "time", "max-run"):
            on_stop, self.on_stop = self.on_stop, lambda: None
            try:
                on_stop()
            except OSError:
                pass  # A full disk must not keep the job from being stopped.
        for order, name in orders:
            host = self._hosts[name]
            if order == "stop":
                host.state = "stopping"
                host.stop(self._now_s())
            else:
                self._log.info(f"{name} is killed")
                host.vanish()

    def _stop_due(self) -> None:
        for host in self._hosts.values():
            if host.stops_at_s is not None and (host.heard or self._now_s() >= host.stops_at_s):
                host.stops_at_s = None
                if host.name in self.lifecycle.running:
                    send(host.pid, signal.SIGTERM)

    def _close_late(self) -> None:
        for host in self._hosts.values():
            if host.closes_at_s is not None and (not host.streams or self._now_s() >= host.closes_at_s):
                host.closes_at_s = None
                for pipe in list(host.streams):
                    self._end_stream(host, pipe)

    @property
    def _bars_moved(self) -> bool:
        return any(stream.moved for host in self._hosts.values() for stream in host.streams.values())

    def _show_progress(self) -> None:
        hosts = tuple(host.progress(several=len(self._hosts) > 1) for host in self._hosts.values())
        for host in self._hosts.values():
            for stream in host.streams.values():
                stream.moved = False
        self._display.progress(JobProgress(name=self.name, elapsed_s=self._now_s(), hosts=hosts))

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s


def _report(
    asked: JobFile,
    staged: Sequence[Staged],
    simulation: Simulation,
    starved: set[str],
    started_s: float,
    training_s: float,
    log: Log,
) -> JobReport:
    lifecycle = simulation.lifecycle
    outcomes = collect.outcomes(staged)
    end: JobEnd = job_end(lifecycle, interrupted=simulation.interrupted, first=first_failure(lifecycle, outcomes))
    refused = _refused(staged, lifecycle, outcomes)
    if end.host in refused:  # The container did not start: a user's error, as a wrong image.
        end = replace(end, exit_code=UserError.exit_code)
    gathered = collect.collect(asked.run.job_dir, staged, log)
    last = gathered.last
    hosts = {}
    for host in asked.hosts:
        told = outcomes.get(host)
        vanished = host in lifecycle.vanished
        cause = "killed by the kernel: the container was out of memory" if host in starved else refused.get(host, "")
        hosts[host] = HostReport(
            exit_code=lifecycle.codes.get(host),
            status="vanished" if vanished else told.status if told else "",
            cause="killed with everything on it" if vanished else own_end(told, host) if told else cause,
        )
    return JobReport(
        name=asked.spec.name,
        status=end.status,
        secondary_status=end.secondary,
        failure_reason=f"ClientError: {refused[end.host]}"
        if end.host in refused
        else failure_reason(end, end.host in lifecycle.vanished, collect.failure_text(staged, end.host)),
        failed_host=accused(end, outcomes),
        exit_code=end.exit_code,
        hosts=hosts,
        start_time=moment(started_s),
        end_time=moment(started_s + training_s),
        training_seconds=training_s,
        billable_seconds=round(training_s * len(hosts), 3),
        metrics={name: json_value(last[name].value) for name, _ in asked.spec.metric_definitions if name in last},
        artifacts=gathered.artifacts,
        notes=gathered.notes,
    )


def _refused(staged: Sequence[Staged], lifecycle: Lifecycle, outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the engine's message for each host whose container it could not start.

    `docker run` exits with 125, or with 126 or 127 if the image has no `train`. A `train` that ran has written an
    outcome.
    """
    told = {}
    for host in staged:
        name = host.setup.host
        if host.container and lifecycle.codes.get(name) in ENGINES_OWN and name not in outcomes:
            said = collect.last_words(staged, name) or f"docker ended with {lifecycle.codes[name]}"
            told[name] = f"the container was not started: {said}"
    return told
