"""Pure: reads the seconds of each epoch of a job from what its script printed.

The best source that a job has is taken, in this order:

1. a metric that gives an epoch's seconds or milliseconds (`epoch_time`, "ms/epoch");
2. the times at which a metric called `epoch` was read;
3. Keras's line for each epoch in the log. tf_keras prints "844ms/epoch" below a second, then whole seconds. Keras 3
   prints "24/24 - 5s - 120ms/step": its milliseconds leave out the first step, and so the compilation. So the whole
   seconds are taken.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from toolkit.metrics.sample import Sample
from toolkit.records import Record

_WORD = r"(?:train_)?epoch_(?:time|latency|duration|seconds?)"
SECONDS = re.compile(rf"{_WORD}(?:_s|_sec|_seconds)?|epoch_s|(?:time|seconds?|latency)_per_epoch|s(?:ec)?/epoch", re.I)
MILLISECONDS = re.compile(rf"{_WORD}_(?:ms|milliseconds)|epoch_ms|ms/epoch|ms_per_epoch", re.I)
MARK = re.compile(r"(?:train_)?epoch", re.I)
KERAS_3 = re.compile(r"(?:^|\] )(\d+)/\1 - (\d+)s - \d+(?:us|ms|s)/step")
TF_KERAS = re.compile(r" - (\d+)(ms|s)/epoch - \d+(?:us|ms|s)/step")
AT_START = 0.2  # Of a typical epoch: what is still measured after the last mark, if marks stand at starts.


class Epochs(Record, frozen=True, kw_only=True):
    """`latencies_s[0]`: of epoch `first`. `source`: where they come from, in words. `resolution_s`: how finely they
    were printed, 0: to milliseconds or better."""

    latencies_s: tuple[float, ...]
    first: int = 1
    source: str = ""
    resolution_s: float = 0.0


def find_in_metrics(metrics: Mapping[str, Sequence[Sample]], start_s: float | None) -> Epochs | None:
    """Return the epochs in *metrics*, samples of one rank by name; None if none tells them. *start_s*: of the job."""
    for pattern, unit_s in ((SECONDS, 1.0), (MILLISECONDS, 1e-3)):
        for name, samples in metrics.items():
            values = [sample.value * unit_s for sample in samples if math.isfinite(sample.value) and sample.value > 0]
            if pattern.fullmatch(name) and values:
                return Epochs(latencies_s=tuple(values), source=f"metric {name}")
    for name, samples in metrics.items():
        if MARK.fullmatch(name):
            last_s = max(sample.time_s for samples in metrics.values() for sample in samples)
            return _measure_between(name, samples, last_s, start_s)
    return None


def find_in_lines(lines: Iterable[str]) -> Epochs | None:
    """Return the epochs that Keras printed in *lines*, None if it printed none."""
    fine_s: list[float] = []
    whole_s: list[float] = []
    rounded = False
    for line in lines:
        if match := TF_KERAS.search(line):
            fine_s.append(int(match[1]) * (1e-3 if match[2] == "ms" else 1.0))
            rounded = rounded or match[2] == "s"
        elif match := KERAS_3.search(line):
            whole_s.append(float(match[2]))
    if fine_s:
        return Epochs(latencies_s=tuple(fine_s), source="tf_keras's lines in the log", resolution_s=float(rounded))
    if any(whole_s):
        return Epochs(latencies_s=tuple(whole_s), source="Keras's lines in the log", resolution_s=1.0)
    return None


def _measure_between(name: str, marks: Sequence[Sample], last_s: float, start_s: float | None) -> Epochs | None:
    """Return the times between the marks of epochs. A fractional epoch (0.33) belongs to the one that it is part of."""
    times: dict[int, list[float]] = {}
    for mark in marks:
        if math.isfinite(mark.value):
            times.setdefault(math.ceil(mark.value), []).append(mark.time_s)
    numbers = sorted(times)
    if len(numbers) < 2:
        return None
    first_s = [times[number][0] for number in numbers]
    apart_s = sorted(next_s - previous_s for previous_s, next_s in pairwise(first_s))
    typical_s = apart_s[len(apart_s) // 2]
    if all(len(times[number]) == 1 for number in numbers) and last_s - first_s[-1] > AT_START * typical_s:
        ends_s = [*first_s[1:], last_s]
        latencies_s = [end - begin for begin, end in zip(first_s, ends_s, strict=True)]
        source = f"times of metric {name}, printed at the start of each epoch"
        return Epochs(latencies_s=tuple(latencies_s), first=numbers[0], source=source)
    ends_s = [max(times[number]) for number in numbers]
    latencies_s = [next_s - previous_s for previous_s, next_s in pairwise(ends_s)]
    source = f"times of metric {name}, printed at the end of each epoch"
    if start_s is not None and numbers[0] == 1:
        source += "; the first epoch from the job's start on"
        return Epochs(latencies_s=(ends_s[0] - start_s, *latencies_s), source=source)
    return Epochs(latencies_s=tuple(latencies_s), first=numbers[1], source=source)
