"""What sees the ranks' lines on their way: metrics, log rules, stragglers. Each is there only where the job asks for
it."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolkit.errors import ContractError
from toolkit.job.job import Job
from toolkit.job.outcome import Ruled
from toolkit.log import Log
from toolkit.supervise.relay import Tap

if TYPE_CHECKING:
    from toolkit.metrics.sample import Sample
    from toolkit.rules.finding import Finding

# A rule with action "stop" ends the job as a hang does; "no-retry" says that trying again will not help
# (docs/exit-codes.md; 93 is what NVIDIA's resiliency launcher gives for it).
EXIT_CODES = {"stop": 124, "no-retry": 93}
STEP_RANKS = 2


class Taps:
    """The taps of one host. `ruled`: what a rule asks the job to end for (supervise.others.Rules)."""

    def __init__(self, job: Job, log: Log) -> None:
        self._job = job
        self._log = log
        self._closers: list[Callable[[], None]] = []
        self._seers: list[Callable[[bytes, int, float], None]] = []
        self._tickers: list[Callable[[float], list[Finding]]] = []
        self._nexts: list[Callable[[float], float | None]] = []
        self.ruled: Ruled | None = None
        if job.metric_definitions:
            self._add_metrics()
        if job.settings.rules is not None:
            self._add_rules()

    def tap(self, rank: int | None) -> Tap | None:
        """Return what sees the lines of a rank (None: no rank, no tap)."""
        if rank is None or not self._seers:
            return None
        seers = self._seers

        def see(block: bytes) -> None:
            now_s = time.time()
            for each in seers:
                each(block, rank, now_s)

        return see

    def rest_s(self) -> float | None:
        """Return the seconds after which `tick` may find something, None if only lines can bring that about."""
        now_s = time.time()
        waits = [wait for each in self._nexts if (wait := each(now_s)) is not None]
        return min(waits, default=None)

    def tick(self) -> None:
        """Look for what has become late."""
        now_s = time.time()
        for each in self._tickers:
            self._heed(each(now_s))

    def close(self) -> None:
        """Write out what is still held."""
        for close in self._closers:
            close()

    def _add_metrics(self) -> None:
        from toolkit.metrics import capture, definition, file, guard, warn

        definitions = definition.compile(self._job.metric_definitions, "metric definitions")
        for each in definitions:
            for text in warn.warnings(each):
                self._log.warning(text)
        watch = guard.Guard()
        found = capture.Capture(definitions, watch=watch, warn=self._log.warning)
        writer = file.SampleFile(self._job.folders.output / "metrics.jsonl", warn=self._log.warning)
        host = self._job.cluster.current
        slow = self._stragglers()

        def see(block: bytes, rank: int, now_s: float) -> None:
            samples = found.lines(block, host=host, rank=rank, now_s=now_s)
            if samples:
                writer.append(samples)
                self._heed(slow(samples))

        self._seers.append(see)
        self._closers += [writer.close, watch.close]

    def _stragglers(self) -> "Callable[[Sequence[Sample]], list[Finding]]":
        """Return what compares the step times of this host's ranks, where there are several and they are captured."""
        ranks = self._job.processes_per_host
        if ranks < STEP_RANKS or not any(name == "step_time" for name, _ in self._job.metric_definitions):
            return lambda _: []
        from toolkit.rules.straggler import Stragglers

        ours = self._job.settings
        return Stragglers(ranks=ranks, factor=ours.straggler_factor, steps=ours.straggler_steps).samples

    def _add_rules(self) -> None:
        from toolkit.metrics import guard
        from toolkit.rules import document, pattern

        path = self._job.settings.rules
        assert path is not None
        try:
            rules = document.read(path.read_bytes(), str(path))
        except OSError as error:
            raise ContractError(
                f"expected a readable file, found none ({error.strerror})", where=f"TOOLKIT_RULES: {path}"
            ) from None
        watch = guard.Guard()
        monitor = pattern.Monitor(rules, start_s=time.time(), warn=self._log.warning, watch=watch)
        self._seers.append(lambda block, rank, now_s: self._heed(monitor.lines(block, rank=rank, now_s=now_s)))
        self._tickers.append(monitor.tick)
        self._nexts.append(monitor.next_s)
        self._closers.append(watch.close)

    def _heed(self, findings: "Sequence[Finding]") -> None:
        for finding in findings:
            who = "" if finding.rank is None else f" (rank {finding.rank})"
            text = f"rule {finding.rule}, {finding.kind}{who}: {finding.message or finding.text}"
            if finding.action == "label":
                self._log.info(text)
                continue
            self._log.warning(text)
            code = EXIT_CODES.get(finding.action)
            if code is not None and self.ruled is None:
                self.ruled = Ruled(exit_code=code, at_ns=time.time_ns(), text=text, rank=finding.rank)
