"""Searches the ranks' lines for the job's metrics, and writes the samples."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.job.job import Job
from toolkit.job.restart import Steps
from toolkit.log import Log
from toolkit.metrics import capture, definition, file, guard, unseen, warn
from toolkit.metrics.sample import Sample, whole
from toolkit.train.attempt_monitor import AttemptMonitor

if TYPE_CHECKING:
    from toolkit.train.log_rules.event import RuleEvent
    from toolkit.train.step_times import StepTimes

# A sample of one of these metrics, or any sample with a step, means that a step was done.
STEP_METRICS = ("step", "step_time")


class MetricMonitor(AttemptMonitor):
    """Captures the job's metrics. `steps`: the progress of this attempt according to the samples.

    *unseen_metrics*, of all attempts, is told which definitions captured something.
    """

    reads_lines = True

    def __init__(
        self,
        job: Job,
        definitions: Sequence[definition.Definition],
        step_times: "StepTimes | None",
        unseen_metrics: unseen.Unseen | None,
        log: Log,
    ) -> None:
        self.steps = Steps()
        self._step_times = step_times
        self._unseen = unseen_metrics
        self._guard = guard.MatchGuard()
        self._capture = capture.MetricCapture(definitions, watch=self._guard, warn=log.warning)
        self._writer = file.SampleFile(job.folders.output / "metrics.jsonl", warn=log.warning)

    def read(self, block: bytes, rank: int, host: str) -> "list[RuleEvent]":
        samples = self._capture.lines(block, host=host, rank=rank, now_s=time.time())  # Only shown: the wall clock.
        if self._unseen is not None:
            self._unseen.look(block, samples)
        if not samples:
            return []
        self._writer.append(samples)
        self._note_steps(samples)
        return [] if self._step_times is None else self._step_times.take_samples(samples)

    def close(self) -> None:
        self._writer.close()
        self._guard.close()
        if self._unseen is not None:
            self._unseen.add(self._capture.not_numbers)

    def _note_steps(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if sample.name in STEP_METRICS or sample.step is not None:
                step = whole(sample.value) if sample.name == "step" and sample.step is None else sample.step
                self.steps = self.steps.and_those(Steps(seen=True, highest=step))


def warn_of_definitions(definitions: Sequence[definition.Definition], log: Log) -> None:
    """Log which of *definitions* capture something else than they seem to be meant for."""
    with guard.MatchGuard() as watch:
        for metric in definitions:
            for text in warn.warnings(metric, watch):
                log.warning(text)
        for metric, better in warn.keras_3(definitions, watch):
            log.warning(warn.keras_3_warning(metric, better))
        quoted = list(warn.transformers_5(definitions, watch))
        if quoted:
            log.warning(warn.transformers_5_warning(quoted, watch))
