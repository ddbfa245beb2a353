"""The newest measurements of a running job, as evidence. The monitor adds what it measures; memory stays bounded."""

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence

from toolkit.diagnosis.evidence import BUSIEST, Evidence, MachineFacts, Readings, StepColumns, Values
from toolkit.job.rank_work import RankWork
from toolkit.series.pauses import RankPauses

# As many samples, steps of a rank and values of a metric are kept: of samples, at most one a second.
SAMPLES = 600
LEAST_INTERVAL_S = 0.95
STEPS = 400
READINGS = 600
METRICS = 64
OF_CORES = ("used_percent", "iowait_percent")
_STEP_FIELDS = StepColumns.__struct_fields__


class EvidenceWindow:
    """Keeps the newest samples, steps and metrics of one host. 1 kB a sample with 250 columns."""

    def __init__(
        self, columns: Sequence[str], *, host: str, start_s: float, interval_s: float, machine: MachineFacts
    ) -> None:
        """*columns*: the names of the values that `sample` gets, for now. *start_s*: the ranks' start."""
        self.host = host
        self.start_s = start_s
        self.interval_s = interval_s
        self.machine = machine
        # The own work of ranks of other hosts, the newest that is known.
        self.elsewhere: Mapping[int, RankWork] = {}
        # Where each rank of this host was in its pauses.
        self.pauses: Mapping[int, RankPauses] = {}
        self._places: dict[str, int] = {}
        self.use(columns)
        self._times: deque[float] = deque(maxlen=SAMPLES)
        self._rows: deque[tuple[dict[str, int], array[float]]] = deque(maxlen=SAMPLES)
        self._steps: dict[int, deque[array[float]]] = {}
        self._metrics: dict[str, dict[int | None, deque[tuple[float, float, float]]]] = {}

    def use(self, columns: Sequence[str]) -> None:
        """From the next sample on, values are those of *columns* (a rank has started)."""
        self._places = {name: index for index, name in enumerate(columns)}
        self._cores = {
            BUSIEST + metric: [index for name, index in self._places.items() if _is_core(name, metric)]
            for metric in OF_CORES
        }
        for index, name in enumerate(self._cores, len(self._places)):
            self._places[name] = index

    def sample(self, time_s: float, values: Sequence[float]) -> None:
        """Add the *values* of all columns at *time_s*."""
        if len(self._times) > 1 and self._times[-1] - self._times[-2] < LEAST_INTERVAL_S:
            # The newest sample is always kept: it may be the last one.
            self._times.pop()
            self._rows.pop()
        self._times.append(time_s)
        row = array("f", values)
        for places in self._cores.values():
            row.append(max([values[place] for place in places], default=math.nan))
        self._rows.append((self._places, row))

    def step(self, rank: int, step: int, end_s: float, step_s: float | None, **parts: float | None) -> None:
        """Add a step of *rank*, its newest. *parts*: as in StepColumns. None: not measured."""
        rows = self._steps.setdefault(rank, deque(maxlen=STEPS))
        values = (step, end_s, step_s, *map(parts.get, _STEP_FIELDS[3:]))
        rows.append(array("d", (math.nan if value is None else value for value in values)))

    def metric(self, name: str, value: float, time_s: float, rank: int | None = None, step: int | None = None) -> None:
        """Add a value of metric *name*; of more than METRICS names only the first are kept."""
        if name not in self._metrics and len(self._metrics) >= METRICS:
            return
        of_rank = self._metrics.setdefault(name, {}).setdefault(rank, deque(maxlen=READINGS))
        of_rank.append((time_s, value, math.nan if step is None else step))

    def evidence(self, now_s: float, *, is_over: bool = False) -> Evidence:
        """Return what is kept, as of *now_s*."""
        return Evidence(
            host=self.host,
            start_s=self.start_s,
            end_s=now_s,
            is_over=is_over,
            interval_s=self.interval_s,
            machine=self.machine,
            times_s=list(self._times),
            names=list(self._places),
            load=self._column,
            steps={rank: _steps(rows) for rank, rows in self._steps.items()},
            elsewhere=self.elsewhere,
            pauses=self.pauses,
            metrics={
                name: {rank: _readings(rows) for rank, rows in ranks.items()} for name, ranks in self._metrics.items()
            },
        )

    def _column(self, name: str) -> Values:
        return [row[places[name]] if name in places else math.nan for places, row in self._rows]


def _is_core(name: str, metric: str) -> bool:
    return name.startswith("cpu/core") and name.endswith(metric)


def _steps(rows: "deque[array[float]]") -> StepColumns:
    return StepColumns(**{name: [row[index] for row in rows] for index, name in enumerate(_STEP_FIELDS)})


def _readings(rows: deque[tuple[float, float, float]]) -> Readings:
    times, values, steps = zip(*rows, strict=True)
    return Readings(time_s=times, value=values, step=steps)
