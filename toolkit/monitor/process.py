"""The monitor's process: one loop that samples, drains, applies the rules and writes, until SIGTERM."""

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolkit import machine as host
from toolkit.diagnosis import describe_failure, slow_rank
from toolkit.diagnosis.evidence import MachineFacts
from toolkit.errors import ContractError
from toolkit.job.monitor_config import MonitorConfig
from toolkit.metrics.tail import MetricsTail
from toolkit.monitor.across import Across
from toolkit.monitor.cost import Cost
from toolkit.monitor.outputs import Outputs
from toolkit.monitor.roster import Roster
from toolkit.monitor.rules import Rules
from toolkit.monitor.sampler import Sampler
from toolkit.monitor.source import SampleSource
from toolkit.monitor.sources.cpu import Cpu
from toolkit.monitor.sources.memory import MemorySource
from toolkit.monitor.sources.pressure import Pressure
from toolkit.monitor.sources.quota import Quota
from toolkit.monitor.sources.ranks import Ranks
from toolkit.monitor.sources.traffic import Traffic
from toolkit.monitor.step_reader import StepReader
from toolkit.records import decode
from toolkit.series import monitor_document
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding
from toolkit.series.pauses import RankPauses
from toolkit.series.step_records import StepRecord
from toolkit.status_pages.pages import request_trace

if TYPE_CHECKING:
    from toolkit.monitor.gpu.source import GpuSource

DRAIN_S = 1.0
ABOUT_S = 60.0
ENDED_S = 0.2  # How often to look whether the ranks have ended.
# The clock was set if it is off by more than this from where the monotonic clock says that it should be.
CLOCK_STEP_S = 1.0


class MonitorProcess:
    """The monitor of one host."""

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        now_s = time.monotonic()
        self._offset_s = time.time() - now_s
        self._clock_steps: tuple[tuple[float, float], ...] = ()
        self._notes: tuple[str, ...] = ()
        self._samples = 0
        self._newest: tuple[float, Sequence[SampleColumn], Sequence[float]] | None = None
        self._cost = Cost(config.monitor.interval_s)
        self._ranks = Ranks()
        self._roster = Roster(config.ranks)
        self._steps = StepReader(config.status, config.attempt, self._offset_s)
        self._metrics_tail = MetricsTail(config.metrics, skip_bytes=config.metrics_bytes)
        self._gpus = self._gpu_source(now_s)
        sources: list[SampleSource] = [Cpu(), MemorySource(), Quota("/", now_s), Pressure("/", now_s)]
        sources.append(Traffic("/", config.output, now_s))
        sources += [] if self._gpus is None else [self._gpus]
        self._sampler = Sampler([*sources, self._ranks], self._cost)
        self._start_s = now_s + self._offset_s
        self._machine = MachineFacts(
            cores=config.cores,
            memory_limit_bytes=host.memory_bytes(Path("/")) or None,
            boot_id=host.boot_id(Path("/")),
            has_neighbours=config.has_neighbours,
        )
        self._outputs: Outputs | None = None
        self._rules: Rules | None = None
        self._across = None if config.compares == "host" else Across(config.ranks.parent, self._start_s)
        self._ends = False

    def run(self, wakeup: int) -> None:
        """Measure until *wakeup*, a descriptor, is readable and no rank lives; then write the end."""
        sample_s = drain_s = time.monotonic()
        about_s = drain_s + DRAIN_S
        while not self._ends or self._ranks.any_lives():
            now_s = time.monotonic()
            if now_s >= sample_s:
                self._sample(now_s)
                # After a pause (a suspended container) the next sample is due at once, not many of them.
                sample_s = max(sample_s + self._cost.interval_s, now_s)
            if now_s >= drain_s:
                self._drain(now_s)
                drain_s = now_s + DRAIN_S
            if now_s >= about_s:
                self._write_about()
                about_s = now_s + ABOUT_S
            due_s = max(min(sample_s, drain_s, about_s) - time.monotonic(), 0.0)
            # A SIGTERM to a whole process group also comes here, and the ranks may still save: measure until they end.
            if select.select([] if self._ends else [wakeup], [], [], min(due_s, ENDED_S) if self._ends else due_s)[0]:
                self._ends = True
        self._end()

    def _gpu_source(self, now_s: float) -> "GpuSource | None":
        if not self._config.gpus:
            return None
        from toolkit.monitor.gpu.source import GpuSource

        argv = (*self._config.gpus, f"{self._config.monitor.interval_s:g}")
        return GpuSource(argv, now_s, self._note)

    def _sample(self, now_s: float) -> None:
        for listed in self._roster.new():
            self._ranks.add(listed.rank, listed.pid, now_s, listed.started)
            self._steps.add(listed.rank, listed.pid)
        usage_before = resource.getrusage(resource.RUSAGE_SELF)
        row = self._sampler.sample(now_s)
        time_s = now_s + self._offset_s
        columns = self._sampler.columns
        if self._outputs is None:
            self._outputs = Outputs(
                self._config.folder,
                columns,
                self._warn,
                host=self._config.host,
                debugger_files=self._config.monitor.debugger,
            )
        self._outputs.sample(time_s, columns, row)
        self._newest = (time_s, columns, row)
        if self._samples == 0:
            self._begin_rules()
        if self._rules is not None:
            self._rules.sample(time_s, columns, row)
        after = resource.getrusage(resource.RUSAGE_SELF)
        self._samples += 1
        self._cost.sample(after.ru_utime - usage_before.ru_utime, after.ru_stime - usage_before.ru_stime)

    def _begin_rules(self) -> None:
        try:
            self._rules = Rules(
                self._config.monitor.rules,
                self._sampler.columns,
                host=self._config.host,
                start_s=self._start_s,
                interval_s=self._config.monitor.interval_s,
                machine=self._machine,
                note=self._note,
                compares_ranks=self._config.compares != "none",
            )
        except ContractError as error:
            self._note(f"no rules are applied: {error}")

    def _drain(self, now_s: float, *, is_over: bool = False) -> None:
        """Do what is due once a second: steps, metrics and rules."""
        outputs = self._outputs
        assert outputs is not None
        new = self._steps.drain()
        outputs.steps(new)
        pauses = self._steps.read_pauses()
        if pauses is not None:
            outputs.pauses(pauses)
        starts = self._steps.read_starts() if self._config.attempt == 1 else None
        if starts is not None:
            outputs.start(msgspec.structs.replace(self._config.start, ranks=starts))
        if self._config.latest is not None and self._newest is not None:
            outputs.latest(self._config.latest, *self._newest)
        self._look_at_clock(now_s)
        self._cost.whole(time.process_time(), now_s)
        if self._rules is None:
            return
        try:
            findings = self._apply_rules(self._rules, new, pauses, now_s + self._offset_s, is_over=is_over)
        except Exception as error:  # noqa: BLE001 - a fault in the rules must not cost the samples
            self._rules = None
            self._note(f"no rules are applied any more: {describe_failure(error)}")
            return
        for finding in findings:
            outputs.finding(msgspec.structs.replace(finding, attempt=self._config.attempt - 1))
            if not is_over:
                self._trace(finding)

    def _apply_rules(
        self,
        rules: Rules,
        new: Sequence[StepRecord],
        pauses: Mapping[int, RankPauses] | None,
        time_s: float,
        *,
        is_over: bool,
    ) -> list[Finding]:
        """Give *rules* what was measured since the last time, and return what they find."""
        rules.steps(new)
        if pauses is not None:
            rules.pauses(pauses)
        rules.metrics(tuple(self._metrics_tail.read_new()))
        self._exchange(rules, time_s)
        return rules.run_due(time_s, is_over=is_over)

    def _exchange(self, rules: Rules, time_s: float) -> None:
        """Tell `train` the own work of this host's ranks, and take that of other hosts' (the leader alone gets it)."""
        if self._across is None:
            return
        if self._across.is_due(time_s):
            try:
                self._across.own(rules.own_work(time_s))
            except OSError:
                pass  # A full disk: the leader compares the ranks of the other hosts.
        others = self._across.others()
        if others is not None:
            rules.elsewhere(others)

    def _trace(self, finding: Finding) -> None:
        """Have the slow rank of *finding*, if it is about one, and a healthy rank trace their next steps."""
        pair = slow_rank.pair(finding)
        if pair is None:
            return
        try:
            if self._across is not None:
                self._across.ask(*pair)
            else:
                request_trace(self._config.status, steps=slow_rank.TRACED_STEPS, ranks=pair)
        except OSError as error:
            self._note(f"ranks {pair[0]} and {pair[1]} were not asked for a trace: {error.strerror}")

    def _look_at_clock(self, now_s: float) -> None:
        offset_s = time.time() - now_s
        last_s = self._clock_steps[-1][1] if self._clock_steps else self._offset_s
        if abs(offset_s - last_s) > CLOCK_STEP_S and len(self._clock_steps) < 100:
            self._clock_steps = (*self._clock_steps, (now_s + self._offset_s, offset_s))

    def _write_about(self, *, is_over: bool = False) -> None:
        if self._outputs is None:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        now_s = time.monotonic()
        self._outputs.about(
            monitor_document.About(
                host=self._config.host,
                start_s=self._start_s,
                end_s=now_s + self._offset_s if is_over else None,
                interval_s=self._config.monitor.interval_s,
                attempt=self._config.attempt,
                machine=monitor_document.Measured(
                    cores=self._machine.cores,
                    gpus=self._gpus.names if self._gpus is not None else (),
                    memory_limit_bytes=self._machine.memory_limit_bytes,
                    boot_id=self._machine.boot_id,
                ),
                clock_offset_s=self._offset_s,
                clock_steps=self._clock_steps,
                rules=self._config.monitor.rules,
                own=monitor_document.OwnCost(
                    samples=self._samples,
                    own_cpu_s=used.ru_utime,
                    kernel_cpu_s=used.ru_stime,
                    cpu_percent=100.0
                    * (used.ru_utime + used.ru_stime)
                    / max(now_s + self._offset_s - self._start_s, 1.0),
                    memory_bytes=used.ru_maxrss * 1024,
                    interval_s=self._cost.interval_s,
                ),
                notes=self._notes,
            )
        )

    def _end(self) -> None:
        """Take the last sample, look once more, and write what is held."""
        self._sample(time.monotonic())
        self._drain(time.monotonic(), is_over=True)
        self._write_about(is_over=True)
        assert self._outputs is not None
        self._outputs.close()
        self._steps.close()
        if self._gpus is not None:
            self._gpus.close()

    def _note(self, text: str) -> None:
        """Note what is not measured, for monitor.json and the log."""
        self._notes = (*self._notes[:99], text)
        self._warn(text)

    def _warn(self, text: str) -> None:
        sys.stderr.write(f"monitor: {text}\n")
        sys.stderr.flush()


def main(argv: list[str]) -> int:
    """Run the monitor that the JSON file *argv*[1] describes."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to everybody; `train` says when the ranks have ended.
    config = decode(Path(argv[1]).read_bytes(), MonitorConfig, argv[1])
    MonitorProcess(config).run(read_end)
    return 0
