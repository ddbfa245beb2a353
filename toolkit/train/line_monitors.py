"""Line monitors: they search the ranks' lines for metrics, log rules and stragglers, each only if the job asks for
it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit import files
from toolkit.errors import of_document
from toolkit.exit_codes import NO_RETRY, TIMED_OUT
from toolkit.folders import is_file
from toolkit.job.job import Job
from toolkit.job.outcome import RuleMatch
from toolkit.job.restart import Steps
from toolkit.log import Log
from toolkit.train.supervise.relay import LineMonitor

if TYPE_CHECKING:
    from toolkit.metrics.sample import Sample
    from toolkit.metrics.unseen import Unseen
    from toolkit.train.log_rules.document import Rule
    from toolkit.train.log_rules.event import RuleEvent
    from toolkit.train.monitored import Monitored
    from toolkit.train.step_times import StepTimes

# The exit codes of rules by action: "stop" has that of a hang; "no-retry" means that another try will not help
# (docs/exit-codes.md).
EXIT_CODES = {"stop": TIMED_OUT, "no-retry": NO_RETRY}
# A sample of one of these metrics, or any sample with a step, means that a step was done.
STEP_METRICS = ("step", "step_time")


class LineMonitors:
    """The line monitors of one host.

    `ruled`: why a log rule ends the job, None if none does (supervise.link.LogRules). `steps`: the progress of this
    attempt according to the samples.
    """

    def __init__(
        self, job: Job, log: Log, step_times: "StepTimes | None" = None, run_folder: Path | None = None
    ) -> None:
        self._job = job
        self._monitored = _monitored(job, run_folder, log)
        self._log = log
        self._step_times = step_times
        self.ruled: RuleMatch | None = None
        self._rules: tuple[Rule, ...] = ()
        self._unseen: Unseen | None = None  # Of all attempts.
        self._begin()

    @property
    def stop_rule(self) -> str:
        """The profiler rule that stops the job; "" while none does (supervise.link.LogRules)."""
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
            raise of_document(error)(
                f"expected a readable file, found none ({error.strerror})",
                where=f"TOOLKIT_RULES: {path}",
                hint=f"A relative path starts from the code folder, {self._job.folders.code}.",
            ) from None
        self._add_rules()

    def _begin(self, *, again: bool = False) -> None:
        self._closers: list[Callable[[], None]] = []
        self._seers: list[Callable[[bytes, int, str], None]] = []
        self._tickers: list[Callable[[float], list[RuleEvent]]] = []
        self._nexts: list[Callable[[float], float | None]] = []
        self.steps = Steps()
        if self._step_times is not None:
            self._tickers.append(lambda now_s: [] if self._step_times is None else self._step_times.look(now_s))
            self._nexts.append(lambda now_s: None if self._step_times is None else self._step_times.due_in_s(now_s))
        if self._job.spec.metric_definitions:
            self._add_metrics(warns=not again)
        if self._rules:
            self._add_rules()

    def again(self) -> None:
        """Reset for ranks that are started again: counts and waiting times of the rules begin again."""
        self._end()
        if self._step_times is not None:
            self._step_times.again()
        if self._monitored is not None:
            self._monitored.again()
        self._begin(again=True)

    def monitor(self, rank: int | None, host: str) -> LineMonitor | None:
        """Return the line monitor of *rank* on *host* ("": unknown); None if the process is no rank."""
        if rank is None or not self._seers:
            return None
        seers = self._seers

        def see(block: bytes) -> None:
            for seer in seers:
                seer(block, rank, host)

        def see_nested(block: bytes) -> None:
            from toolkit.train.nested_ranks import by_rank

            for lines, its_rank, its_host in by_rank(block, rank, host):
                for seer in seers:
                    seer(lines, its_rank, its_host)

        if self._job.spec.plugin is not None:
            return see_nested

        return see

    def note_rank(self, rank: int, local_rank: int | None, pid: int) -> None:
        """Note that *rank* runs as process *pid*."""
        if self._monitored is not None:
            self._monitored.started(rank, local_rank, pid)
        if self._step_times is not None:
            self._step_times.started(rank, pid)

    def due_in_s(self) -> float | None:
        """Return the seconds until `tick` is due, None if the rules depend only on lines."""
        now_s = time.monotonic()
        waits = [wait for due in self._nexts if (wait := due(now_s)) is not None]
        if self._monitored is not None:
            waits.append(self._monitored.due_in_s(now_s))
        return min(waits, default=None)

    def tick(self) -> None:
        """Apply the rules that depend on time."""
        now_s = time.monotonic()
        for ticker in self._tickers:
            self._heed(ticker(now_s))
        if self._monitored is not None:
            self._monitored.look(now_s)

    def close(self) -> None:
        """Write the samples that are still held, log the monitor's last findings, and name the definitions that
        captured nothing."""
        self._end()
        if self._unseen is not None:
            for text in self._unseen.sentences():
                self._log.warning(text)

    def _end(self) -> None:
        for close in self._closers:
            close()
        if self._monitored is not None:
            self._monitored.last_look()

    def _add_metrics(self, *, warns: bool) -> None:
        from toolkit.metrics import capture, definition, file, guard, unseen, warn

        definitions = definition.compile(self._job.spec.metric_definitions, "metric definitions")
        watch = guard.MatchGuard()
        warns = warns and self._job.cluster.is_leader  # All hosts have the same definitions.
        if warns:
            self._unseen = unseen.Unseen(definitions)
        for metric in definitions if warns else ():
            for text in warn.warnings(metric, watch):
                self._log.warning(text)
        for metric, better in warn.keras_3(definitions if warns else (), watch):
            self._log.warning(warn.keras_3_warning(metric, better))
        quoted = list(warn.transformers_5(definitions if warns else (), watch))
        if quoted:
            self._log.warning(warn.transformers_5_warning(quoted, watch))
        capturing = capture.MetricCapture(definitions, watch=watch, warn=self._log.warning)
        writer = file.SampleFile(self._job.folders.output / "metrics.jsonl", warn=self._log.warning)

        def see(block: bytes, rank: int, host: str) -> None:
            samples = capturing.lines(block, host=host, rank=rank, now_s=time.time())  # Only shown: the wall clock.
            if self._unseen is not None:
                self._unseen.look(block, samples)
            if samples:
                writer.append(samples)
                self._note_steps(samples)
                if self._step_times is not None:
                    self._heed(self._step_times.samples(samples))

        self._seers.append(see)
        self._closers += [writer.close, watch.close]
        if self._unseen is not None:
            self._closers.append(partial(self._unseen.add, capturing.not_numbers))

    def _note_steps(self, samples: "Sequence[Sample]") -> None:
        from toolkit.metrics.sample import whole

        for sample in samples:
            if sample.name in STEP_METRICS or sample.step is not None:
                step = whole(sample.value) if sample.name == "step" and sample.step is None else sample.step
                self.steps = self.steps.and_those(Steps(seen=True, highest=step))

    def _add_rules(self) -> None:
        from toolkit.metrics import guard
        from toolkit.train.log_rules import pattern

        watch = guard.MatchGuard()
        monitor = pattern.PatternMonitor(self._rules, start_s=time.monotonic(), warn=self._log.warning, watch=watch)
        self._seers.append(lambda block, rank, _: self._heed(monitor.lines(block, rank=rank, now_s=time.monotonic())))
        self._tickers.append(monitor.tick)
        self._nexts.append(monitor.next_s)
        self._closers.append(watch.close)

    def _heed(self, events: "Sequence[RuleEvent]") -> None:
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


def _monitored(job: Job, run_folder: Path | None, log: Log) -> "Monitored | None":
    if job.monitor is None or run_folder is None:
        return None
    from toolkit.train.monitored import Monitored  # 5 ms, which only a job with a monitor pays.

    return Monitored(job, run_folder, log)
