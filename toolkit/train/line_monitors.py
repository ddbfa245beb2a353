"""Line monitors: they search the ranks' lines for metrics, log rules and stragglers, each only if the job asks for
it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import files
from toolkit.errors import choose_document_error
from toolkit.exit_codes import NO_RETRY, TIMED_OUT
from toolkit.folders import is_file
from toolkit.job.job import Job
from toolkit.job.outcome import RuleMatch
from toolkit.job.restart import Steps
from toolkit.log import Log
from toolkit.train.attempt_monitor import AttemptMonitor
from toolkit.train.supervise.relay import LineMonitor

if TYPE_CHECKING:
    from toolkit.metrics.unseen import Unseen
    from toolkit.series.finding import Finding
    from toolkit.train.log_rules.document import Rule
    from toolkit.train.log_rules.event import RuleEvent
    from toolkit.train.metric_monitor import MetricMonitor
    from toolkit.train.monitored import Monitored
    from toolkit.train.step_times import StepTimes

# The exit codes of rules by action: "stop" has that of a hang; "no-retry" means that another try will not help
# (docs/exit-codes.md).
EXIT_CODES = {"stop": TIMED_OUT, "no-retry": NO_RETRY}


class RuleMonitor(AttemptMonitor):
    """Applies the log rules; their counts and waiting times begin with the attempt."""

    reads_lines = True

    def __init__(self, rules: "tuple[Rule, ...]", log: Log) -> None:
        from toolkit.metrics.guard import MatchGuard
        from toolkit.train.log_rules.pattern import PatternMonitor

        self._guard = MatchGuard()
        self._patterns = PatternMonitor(rules, start_s=time.monotonic(), warn=log.warning, watch=self._guard)

    def read(self, block: bytes, rank: int, _host: str) -> "list[RuleEvent]":
        return self._patterns.lines(block, rank=rank, now_s=time.monotonic())

    def tick(self, now_s: float) -> "list[RuleEvent]":
        return self._patterns.tick(now_s)

    def due_in_s(self, now_s: float) -> float | None:
        return self._patterns.next_s(now_s)

    def close(self) -> None:
        self._guard.close()


class LineMonitors:
    """The line monitors of one host.

    `ruled`: why a log rule ends the job, None if none does (supervise.link.HostLineMonitors).
    """

    def __init__(
        self,
        job: Job,
        log: Log,
        step_times: "StepTimes | None" = None,
        run_folder: Path | None = None,
        on_finding: "Callable[[Finding], None]" = lambda _finding: None,
    ) -> None:
        self._job = job
        self._log = log
        self._step_times = step_times
        self._monitored = _monitored(job, run_folder, on_finding, log)
        self.ruled: RuleMatch | None = None
        self._rules: tuple[Rule, ...] = ()
        self._unseen: Unseen | None = None  # Of all attempts.
        self._begin()

    @property
    def steps(self) -> Steps:
        """The progress of this attempt according to the samples."""
        return Steps() if self._metrics is None else self._metrics.steps

    @property
    def stop_rule(self) -> str:
        """The profiler rule that stops the job; "" while none does (supervise.link.HostLineMonitors)."""
        return "" if self._monitored is None else self._monitored.stop_rule

    def read_rules(self) -> None:
        """Apply the job's rules from now on. Call it when the code is in place, since the document may be part of it.

        Raises:
            ContractError: the document cannot be read, or is wrong.
        """
        path = self._job.settings.rules
        if path is None:
            return
        from toolkit.train.log_rules import document

        in_code = self._job.folders.code / path
        try:
            self._rules = document.read(files.read(in_code if is_file(in_code) else path), str(path))
        except OSError as error:
            raise choose_document_error(error)(
                f"expected a readable file, found none ({error.strerror})",
                where=f"TOOLKIT_RULES: {path}",
                hint=f"A relative path starts from the code folder, {self._job.folders.code}.",
            ) from None
        self._monitors.append(RuleMonitor(self._rules, self._log))

    def _begin(self, *, again: bool = False) -> None:
        self._monitors: list[AttemptMonitor] = []
        self._metrics: MetricMonitor | None = None
        if self._step_times is not None:
            self._monitors.append(self._step_times)
        if self._job.spec.metric_definitions:
            self._metrics = self._make_metric_monitor(warns=not again)
            self._monitors.append(self._metrics)
        if self._rules:
            self._monitors.append(RuleMonitor(self._rules, self._log))

    def begin_attempt(self) -> None:
        """Reset for ranks that are started again: counts and waiting times of the rules begin again."""
        self._end()
        if self._step_times is not None:
            self._step_times.begin_attempt()
        if self._monitored is not None:
            self._monitored.begin_attempt()
        self._begin(again=True)

    def make_monitor(self, rank: int | None, host: str) -> LineMonitor | None:
        """Return the line monitor of *rank* on *host* ("": unknown); None if the process is no rank."""
        monitors = self._monitors
        if rank is None or not any(monitor.reads_lines for monitor in monitors):
            return None

        def read(block: bytes) -> None:
            for monitor in monitors:
                self._apply_events(monitor.read(block, rank, host))

        def read_nested(block: bytes) -> None:
            from toolkit.train.nested_ranks import by_rank

            for lines, its_rank, its_host in by_rank(block, rank, host):
                for monitor in monitors:
                    self._apply_events(monitor.read(lines, its_rank, its_host))

        return read if self._job.spec.plugin is None else read_nested

    def note_rank(self, rank: int, local_rank: int | None, pid: int) -> None:
        """Note that *rank* runs as process *pid*."""
        if self._monitored is not None:
            self._monitored.note_rank(rank, local_rank, pid)
        if self._step_times is not None:
            self._step_times.note_rank(rank, pid)

    def due_in_s(self) -> float | None:
        """Return the seconds until `tick` is due, None if the rules depend only on lines."""
        now_s = time.monotonic()
        waits = [wait for monitor in self._monitors if (wait := monitor.due_in_s(now_s)) is not None]
        if self._monitored is not None:
            waits.append(self._monitored.due_in_s(now_s))
        return min(waits, default=None)

    def tick(self) -> None:
        """Apply the rules that depend on time."""
        now_s = time.monotonic()
        for monitor in self._monitors:
            self._apply_events(monitor.tick(now_s))
        if self._monitored is not None:
            self._monitored.read_findings(now_s)

    def close(self) -> None:
        """Write the samples that are still held, log the monitor's last findings, and name the definitions that
        captured nothing."""
        self._end()
        if self._unseen is not None:
            for text in self._unseen.sentences():
                self._log.warning(text)

    def _end(self) -> None:
        for monitor in self._monitors:
            monitor.close()
        if self._monitored is not None:
            self._monitored.read_last_findings()

    def _make_metric_monitor(self, *, warns: bool) -> "MetricMonitor":
        from toolkit.metrics import definition, unseen
        from toolkit.train.metric_monitor import MetricMonitor, warn_of_definitions

        definitions = definition.compile(self._job.spec.metric_definitions, "metric definitions")
        if warns and self._job.cluster.is_leader:  # All hosts have the same definitions.
            self._unseen = unseen.Unseen(definitions)
            warn_of_definitions(definitions, self._log)
        return MetricMonitor(self._job, definitions, self._step_times, self._unseen, self._log)

    def _apply_events(self, events: "Sequence[RuleEvent]") -> None:
        for event in events:
            who = "" if event.rank is None else f" (rank {event.rank})"
            text = f"rule {event.rule}, {event.kind}{who}: {event.message or event.text}"
            if event.action == "label":
                self._log.info(text)
                continue
            self._log.warning(text)
            code = EXIT_CODES.get(event.action)
            if code is not None and self.ruled is None:
                self.ruled = RuleMatch(exit_code=code, at_ns=time.monotonic_ns(), text=text, rank=event.rank)


def _monitored(
    job: Job, run_folder: Path | None, on_finding: "Callable[[Finding], None]", log: Log
) -> "Monitored | None":
    if job.monitor is None or run_folder is None:
        return None
    from toolkit.train.monitored import Monitored  # 5 ms, which only a job with a monitor pays.

    return Monitored(job, run_folder, log, on_finding)
