"""The live rules: what is measured goes into a sliding window, and what they find comes out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.diagnosis import configuration, slow_rank
from toolkit.diagnosis.evidence import MachineFacts
from toolkit.diagnosis.job import ACROSS_HOSTS
from toolkit.diagnosis.live import LiveDiagnosis
from toolkit.diagnosis.window import EvidenceWindow
from toolkit.job.rank_work import RankWork
from toolkit.metrics.sample import Sample
from toolkit.series.column import SampleColumn
from toolkit.series.finding import Finding
from toolkit.series.pauses import RankPauses
from toolkit.series.step_records import SECONDS, StepRecord


class Rules:
    """The rules of one host over its newest measurements. *raw*: rule configurations as the job gave them."""

    def __init__(
        self,
        raw: Any,
        columns: Sequence[SampleColumn],
        *,
        host: str,
        start_s: float,
        interval_s: float,
        machine: MachineFacts,
        note: Callable[[str], None],
        compares_ranks: bool = True,
    ) -> None:
        """*compares_ranks*: apply the rules that compare ranks; the leader's monitor does it for other hosts.

        Raises:
            ContractError: *raw* is no list of rule configurations.
        """
        selection = configuration.read(raw or None, "the job's profiler rules")
        for note_ in selection.notes:
            note(note_)
        self._columns = tuple(columns)
        names = [column.name for column in columns]
        self._window = EvidenceWindow(names, host=host, start_s=start_s, interval_s=interval_s, machine=machine)
        configurations = [
            configuration
            for configuration in selection.configurations
            if compares_ranks or configuration.rule.name not in ACROSS_HOSTS
        ]
        self._live = LiveDiagnosis(self._window, configurations, note)

    def sample(self, time_s: float, columns: Sequence[SampleColumn], row: Sequence[float]) -> None:
        """Add a sample."""
        if tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._window.use([column.name for column in columns])
        self._window.sample(time_s, row)

    def steps(self, new: Sequence[StepRecord]) -> None:
        """Add steps."""
        for step in new:
            self._window.step(step.rank, step.step, step.end_s, **{name: getattr(step, name) for name in SECONDS})

    def pauses(self, ranks: Mapping[int, RankPauses]) -> None:
        """Take where the ranks were in their pauses until now."""
        self._window.pauses = ranks

    def metrics(self, new: Sequence[Sample]) -> None:
        """Add values of metrics."""
        for sample in new:
            self._window.metric(sample.name, sample.value, sample.time_s, sample.rank, sample.step)

    def own_work(self, now_s: float) -> dict[int, RankWork]:
        """Return the own work of this host's ranks in the newest steps, by rank."""
        return slow_rank.own_work(self._window.evidence(now_s))

    def elsewhere(self, works: Mapping[int, RankWork]) -> None:
        """Take the own work of the ranks of other hosts."""
        self._window.elsewhere = works

    def run_due(self, now_s: float, *, is_over: bool = False) -> list[Finding]:
        """Return what is new at *now_s*, since the epoch."""
        return self._live.run_due(now_s, is_over=is_over)
