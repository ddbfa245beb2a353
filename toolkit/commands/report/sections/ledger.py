"""Pure: divides the paid time by what it was spent on.

Each rank's time, from the job's start to its end, is cut into spans that do not overlap; a host's second is divided
among its ranks. So the parts add up to the whole exactly, and what no measurement explains is a part of its own.

A job has as many attempts as failures and one more, if the last did not fail. Within an attempt, the steps of a rank
follow one another. A step's parts were measured in the rank (rank/profiler/step_timer.py).

How long a rank waited for a slower one cannot be read from one rank alone. In synchronous training all ranks leave a
step's barrier together, so the one that arrives early spends the difference inside of backward (gradients), or of
forward (buffers). `_waits` therefore takes the lesser of two differences: how much earlier the rank was ready than the
last one, and how much longer it spent in that part than the rank that was fastest there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.records import Record
from toolkit.series.arrays import numpy

if TYPE_CHECKING:
    from numpy import bool_, float64
    from numpy.typing import NDArray

    from toolkit.series.step_records import StepTable

    Floats = NDArray[float64]

# Ranks whose times of one step differ by more than this share do not train in step: no wait is derived.
IN_STEP = 0.25
LEAST_DIFFERENCE_S = 0.01
NAMES = (
    "start-up",
    "first step",
    "data",
    "evaluation",
    "collection",
    "pause",
    "straggler",
    "checkpoints",
    "lost",
    "idle",
    "training",
)
# A first step counts as a part of its own where more steps than these follow it: else their median says little.
FEWEST_STEPS = 5


class JobTimes(Record, frozen=True, kw_only=True):
    """The times of a job by which its seconds are divided, in seconds since the epoch."""

    start_s: float
    """When the job began."""
    end_s: float
    """When it ended."""
    failures: tuple[float, ...] = ()
    """When attempts ended with a failure, ascending."""
    failed: bool = False
    """True: the last of `failures` ended the job."""
    saved: tuple[float, ...] = ()
    """When checkpoints were seen, besides those that the steps show."""
    late_s: Mapping[str, Mapping[int, tuple[float, float]]] = {}
    """By host and rank: the seconds of saving, and of evaluation, after the rank's last step."""
    ranks_began: Mapping[str, float] = {}
    """By host: when its first rank was started, for hosts whose steps were not measured."""
    interrupted: bool = False
    """True: the platform took the hosts, so that nothing but `saved` outlived them."""


def divide_time(
    times: JobTimes, hosts: Sequence[str], tables: "Mapping[str, StepTable]"
) -> dict[str, dict[str, float]]:
    """Return for each of *hosts* the seconds of each of NAMES. What they lack of the job's time is unexplained."""
    ranks = [
        (host, _RankTimes(times, table.of(rank), times.late_s.get(host, {}).get(rank, (0.0, 0.0))))
        for host, table in tables.items()
        for rank in table.ranks
    ]
    saved = _list_saved_times(times, [rank for _, rank in ranks])
    for _, rank in ranks:
        rank.saved = saved
    _set_waits([rank for _, rank in ranks])
    divided = {}
    for host in hosts:
        rank_parts = [rank.parts() for rank_host, rank in ranks if rank_host == host]
        divided[host] = (
            {name: sum(parts[name] for parts in rank_parts) / len(rank_parts) for name in NAMES}
            if rank_parts
            else _divide_without_steps(times, times.ranks_began.get(host))
        )
    return divided


def _divide_without_steps(times: JobTimes, began_s: float | None) -> dict[str, float]:
    parts = dict.fromkeys(NAMES, 0.0)
    if began_s is not None:
        parts["start-up"] = _clip_s(times, times.start_s, began_s)
    if times.failed:
        parts["idle"] = _clip_s(times, max(times.failures[-1], began_s or 0.0), times.end_s)
    if times.interrupted:
        parts["start-up"] = _clip_s(times, times.start_s, times.end_s if began_s is None else began_s)
        parts["lost"] = _clip_s(times, max((began_s or times.end_s, *times.saved)), times.end_s)
    return parts


def _clip_s(times: JobTimes, start_s: float, end_s: float) -> float:
    return max(min(end_s, times.end_s) - max(start_s, times.start_s), 0.0)


class _RankTimes:
    """The steps of one rank as arrays: begin, duration, and the parts of each, none of which overlap."""

    def __init__(self, times: JobTimes, table: "StepTable", late_s: tuple[float, float]) -> None:
        np = numpy()
        self._facts = times
        self._late_s = late_s
        last_s = times.failures[-1] if times.failed else times.end_s
        inside = table.where((table.end_s > times.start_s) & (table.end_s <= min(last_s, times.end_s)))
        self.end_s: Floats = inside.end_s
        previous_end_s = np.concatenate(([times.start_s], self.end_s))[:-1]  # As many as steps, which may be none.
        begin = np.where(np.isnan(inside.step_s), self.end_s, self.end_s - inside.step_s)
        self.begin_s: Floats = np.maximum(begin, previous_end_s)
        self.step_s: Floats = self.end_s - self.begin_s
        self.attempt = (
            np.searchsorted(np.asarray(times.failures), self.end_s)
            if times.failures
            else np.zeros(len(previous_end_s), int)
        )
        self.key = self.attempt.astype("i8") * (1 << 40) + inside.step
        parts = [
            inside.checkpoint_s,
            inside.data_s,
            inside.evaluation_s,
            inside.collection_s,
            inside.pause_s,
            inside.forward_s,
            inside.backward_s,
            inside.optimizer_s,
        ]
        self.is_divided: NDArray[bool_] = ~np.isnan(np.stack([inside.forward_s, inside.backward_s])).all(axis=0)
        left_s = self.step_s
        fitted_s = []
        for (
            part
        ) in parts:  # Measured by another clock reading than the step's end: none may be longer than what is left.
            fitted_s.append(np.clip(np.nan_to_num(part), 0.0, left_s))
            left_s = left_s - fitted_s[-1]
        self.checkpoint_s, self.data_s, self.evaluation_s, self.collection_s, self.pause_s, *worked_s = fitted_s
        self.forward_s, self.backward_s, self.optimizer_s = worked_s
        self.wait_s: Floats = np.zeros(len(self.end_s))
        self.saved: tuple[float, ...] = ()

    def parts(self) -> dict[str, float]:
        """Return the seconds of each of NAMES."""
        np = numpy()
        times = self._facts
        parts = dict.fromkeys(NAMES, 0.0)
        lost = np.zeros(len(self.end_s))
        previous_s = times.start_s
        attempts = len(times.failures) + (not times.failed)
        for attempt in range(attempts):
            steps = np.flatnonzero(self.attempt == attempt)
            failed_s = times.failures[attempt] if attempt < len(times.failures) else None
            gap = "idle" if attempt else "start-up"
            if not len(steps):
                if failed_s is not None:
                    parts[gap] += _clip_s(times, previous_s, failed_s)
                    previous_s = failed_s
                continue
            parts[gap] += _clip_s(times, previous_s, float(self.begin_s[steps[0]]))
            if failed_s is not None:
                kept_s = max((saved_s for saved_s in self.saved if saved_s <= failed_s), default=0.0)
                lost[steps] = np.clip(self.end_s[steps] - np.maximum(self.begin_s[steps], kept_s), 0.0, None)
                parts["lost"] += _clip_s(times, max(float(self.end_s[steps[-1]]), kept_s), failed_s)
                previous_s = failed_s
        if not times.failed and len(self.end_s):
            left_s = _clip_s(times, float(self.end_s[-1]), times.end_s)
            saved_s = min(self._late_s[0], left_s)
            parts["checkpoints"] += saved_s
            parts["evaluation"] += min(self._late_s[1], left_s - saved_s)
        if times.failed:
            parts["idle"] += _clip_s(times, times.failures[-1], times.end_s)
        left = self.step_s - lost
        saving = np.minimum(self.checkpoint_s, left)
        # A step within which a checkpoint was saved is lost from there on; saving comes first.
        step_s = self.step_s - self.checkpoint_s
        share = np.divide(left - saving, step_s, out=np.zeros(len(left)), where=step_s > 0)
        trained = np.where(
            self.is_divided,
            self.forward_s + self.backward_s + self.optimizer_s - self.wait_s,
            self.step_s - self.checkpoint_s - self.data_s - self.evaluation_s - self.collection_s - self.pause_s,
        )
        for first, excess_s in self._first_steps(trained):
            parts["first step"] += excess_s * float(share[first])
            trained[first] -= excess_s
        parts["evaluation"] += float((self.evaluation_s * share).sum())
        parts["collection"] += float((self.collection_s * share).sum())
        parts["pause"] += float((self.pause_s * share).sum())
        parts["data"] += float((self.data_s * share).sum())
        parts["straggler"] += float((self.wait_s * share).sum())
        parts["training"] += float((trained * share).sum())
        parts["checkpoints"] += float(saving.sum())
        parts["lost"] += float(lost.sum())
        return parts

    def _first_steps(self, trained_s: "Floats") -> "Iterator[tuple[int, float]]":
        """Yield the index of the first step of each attempt, and by how much it trained longer than the median one."""
        np = numpy()
        for attempt in sorted(set(self.attempt.tolist())):
            steps = np.flatnonzero(self.attempt == attempt)
            if len(steps) > FEWEST_STEPS:
                yield int(steps[0]), max(float(trained_s[steps[0]] - np.median(trained_s[steps[1:]])), 0.0)


def _list_saved_times(times: JobTimes, ranks: Sequence[_RankTimes]) -> tuple[float, ...]:
    """Return the times at which a checkpoint was complete, of any rank: it serves all."""
    saved = list(times.saved)
    for rank in () if times.interrupted else ranks:
        which = numpy().flatnonzero(rank.checkpoint_s > 0)
        # Scripts save after the optimizer's step, which is where the next step begins.
        saved += (rank.begin_s[which] + rank.checkpoint_s[which]).tolist()
    return tuple(sorted(saved))


def _find_distinct_keys(rank: _RankTimes) -> "tuple[Any, Any]":
    """Return the keys of the rank's steps, ascending and each once, and where they are."""
    np = numpy()
    order = np.argsort(rank.key, kind="stable")
    keys = rank.key[order]
    first = np.diff(keys, prepend=-1) > 0
    return keys[first], order[first]


def _set_waits(ranks: Sequence[_RankTimes]) -> None:
    """Set how long each of *ranks* waited for others in each step that all of them have."""
    if len(ranks) < 2:
        return
    np = numpy()
    sorted_keys, orders = zip(*(_find_distinct_keys(rank) for rank in ranks), strict=True)
    common = sorted_keys[0]
    for keys in sorted_keys[1:]:
        common = np.intersect1d(common, keys, assume_unique=True)
    if not len(common):
        return
    rows = [order[np.searchsorted(keys, common)] for keys, order in zip(sorted_keys, orders, strict=True)]

    def matrix(name: str) -> "Floats":
        rows_of_ranks: Floats = np.stack([getattr(rank, name)[row] for rank, row in zip(ranks, rows, strict=True)])
        return rows_of_ranks

    step, forward, saving, data = matrix("step_s"), matrix("forward_s"), matrix("checkpoint_s"), matrix("data_s")
    late = matrix("backward_s") + matrix("optimizer_s")
    ready = step - late
    apart = step.max(axis=0) - step.min(axis=0)
    in_step = apart <= np.maximum(IN_STEP * step.max(axis=0), LEAST_DIFFERENCE_S)

    def lesser(ready: "Floats", spent: "Floats") -> "Floats":
        lesser_s: Floats = np.minimum(ready.max(axis=0) - ready, spent - spent.min(axis=0))
        return lesser_s

    waited = np.where(in_step, lesser(data + saving, forward) + lesser(ready, late), 0.0)
    waited = np.minimum(waited, forward + late)
    for number, (rank, row) in enumerate(zip(ranks, rows, strict=True)):
        rank.wait_s[row] = waited[number]
