"""The evidence that a rule looks at: samples, steps and metrics of one host, as plain lists.

The live monitor has no numpy, so rules use the standard library alone. `window.py` makes an Evidence of what the
monitor has just measured, `files.py` of what it left on the disk. NaN: not measured at that time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from toolkit.diagnosis.numbers import measured
from toolkit.job.rank_work import RankWork
from toolkit.records import Record
from toolkit.series.pauses import RankPauses
from toolkit.series.start_up import HostStart

Values = Sequence[float]
# Columns that a maker of evidence may have ready, so that no rule needs every core: the highest value of any core.
BUSIEST = "cpu/busiest/"


class MachineFacts(Record, frozen=True, kw_only=True):
    """The hardware of the host; None or empty: not known."""

    cores: int | None = None  # Those that the job may use.
    gpus: tuple[str, ...] = ()  # Their names.
    memory_limit_bytes: float | None = None
    boot_id: str = ""  # Of the machine's kernel: hosts with the same one, as containers, share a machine.
    has_neighbours: bool = False  # Other hosts of the job run on the same machine.


class StepColumns(Record, frozen=True, kw_only=True):
    """The steps of a rank, oldest first: lists of one length."""

    step: Values = ()
    """The numbers of the steps."""
    end_s: Values = ()
    """Seconds since the epoch."""
    step_s: Values = ()
    """Seconds, as all that follow; NaN where it was not measured."""
    data_s: Values = ()
    forward_s: Values = ()
    backward_s: Values = ()
    optimizer_s: Values = ()
    checkpoint_s: Values = ()
    own_backward_s: Values = ()
    """Backward without the wait for the gradients of other ranks at its end."""
    evaluation_s: Values = ()  # Evaluation before the forward pass.
    collection_s: Values = ()  # Python's garbage collections.
    pause_s: Values = ()  # What lies before the forward pass and is nothing of the above.
    compile_s: Values = ()  # torch.compile within the step.
    cpu_s: Values = ()  # CPU time of the thread that steps, in the whole step,
    data_cpu_s: Values = ()  # in waiting for the data loader,
    evaluation_cpu_s: Values = ()  # in evaluation,
    checkpoint_cpu_s: Values = ()  # in saving,
    pause_cpu_s: Values = ()  # and in the pause. What a part took longer, the thread waited.

    def between(self, start_s: float, end_s: float) -> "StepColumns":
        """Return the steps that ended from *start_s* to *end_s*."""
        first, last = bisect_left(self.end_s, start_s), bisect_right(self.end_s, end_s)
        return StepColumns(**{name: getattr(self, name)[first:last] for name in self.__struct_fields__})

    def timed(self) -> "StepColumns":
        """Return the steps whose time was measured: the first may have none."""
        kept = [index for index, seconds in enumerate(self.step_s) if seconds == seconds]
        if len(kept) == len(self.step_s):
            return self
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return StepColumns(
            **{name: [values[index] for index in kept] if len(values) else () for name, values in columns.items()}
        )


class Readings(Record, frozen=True, kw_only=True):
    """The values of one metric of one rank (None: of no rank), oldest first. `step` NaN: not known."""

    time_s: Values = ()
    value: Values = ()
    step: Values = ()


class Evidence:
    """The measurements of one host, from `start_s` (the ranks began) to `end_s` (newest sample, or their end).

    `interval_s`: the time between two samples as they were taken; patience counts these. `times_s`: the times of the
    values that `column` returns, which may be means of several samples. `is_over`: the job is over, so no sample
    follows. `steps`: by rank. `metrics`: by name and rank. `compared`: which rank the running monitor compared with a
    slow one. `elsewhere`: the own work of ranks of other hosts, while the job runs. `courses`: of ranks with more steps
    than `steps` has, means of `course_steps` steps each over the whole job; `step` is that of the first of them.
    `pauses`: where each rank was while its steps had not begun their forward pass. `is_crowded`: other programs held
    the cores; None: the samples say it. `start`: what the host did before the first step, once the job is over.
    `neighbours`: of other hosts of the job that share its machine.
    """

    def __init__(
        self,
        *,
        host: str,
        start_s: float,
        end_s: float,
        is_over: bool,
        interval_s: float,
        machine: MachineFacts,
        times_s: Values = (),
        names: Sequence[str] = (),
        load: Callable[[str], Values] = lambda _: (),
        steps: Mapping[int, StepColumns] | None = None,
        metrics: Mapping[str, Mapping[int | None, Readings]] | None = None,
        compared: Mapping[int, int] | None = None,
        elsewhere: Mapping[int, RankWork] | None = None,
        courses: Mapping[int, StepColumns] | None = None,
        course_steps: int = 1,
        is_crowded: bool | None = None,
        pauses: Mapping[int, RankPauses] | None = None,
        start: HostStart | None = None,
    ) -> None:
        self.host = host
        self.start_s = start_s
        self.end_s = end_s
        self.is_over = is_over
        self.interval_s = interval_s
        self.machine = machine
        self.times_s = times_s
        self.steps = steps or {}
        self.metrics = metrics or {}
        self.compared = compared or {}
        self.elsewhere = elsewhere or {}
        self.courses = courses or {}
        self.course_steps = course_steps
        self.is_crowded = is_crowded
        self.pauses = pauses or {}
        self.start = start or HostStart()
        self.neighbours: Sequence[Evidence] = ()
        self._names = frozenset(names)
        self._by_kind: dict[tuple[str, str], list[str]] = {}
        self._load = load
        self._loaded: dict[str, Values] = {}

    def column(self, name: str) -> Values:
        """Return the values of column *name*, as many as `times_s`; empty if nothing was measured."""
        if name not in self._names:
            return ()
        if name not in self._loaded:
            values = self._load(name)
            self._loaded[name] = values if any(value == value for value in values) else ()
        return self._loaded[name]

    def columns(self, kind: str, metric: str) -> dict[str, Values]:
        """Return the columns KIND/NAME/METRIC that hold values, by NAME, sorted by its number: core2 before core10."""
        return {
            name: values for name in self._named(kind, metric) if (values := self.column(f"{kind}/{name}/{metric}"))
        }

    def cores(self) -> tuple[str, ...]:
        """Return the cores whose use was measured: "core0"."""
        return tuple(name for name in self._named("cpu", "used_percent") if name.startswith("core"))

    def busiest_core(self, metric: str) -> Values:
        """Return the highest *metric* (used_percent, iowait_percent) of any core at each time; of "all", if no core's
        was measured."""
        ready = self.column(BUSIEST + metric)
        if ready:
            return ready
        names = [name for name in self._named("cpu", metric) if name.startswith("core")]
        columns = [values for name in names if (values := self.column(f"cpu/{name}/{metric}"))]
        return list(map(max, zip(*columns, strict=True))) if columns else self.column(f"cpu/all/{metric}")

    def _named(self, kind: str, metric: str) -> list[str]:
        if not self._by_kind:
            for name in self._names:
                if name.count("/") == 2:
                    of_kind, column_name, of_metric = name.split("/")
                    self._by_kind.setdefault((of_kind, of_metric), []).append(column_name)
            for names in self._by_kind.values():
                names.sort(key=_number)
        return self._by_kind.get((kind, metric), [])

    def gpus(self) -> dict[str, Values]:
        """Return the use of each GPU that the job uses, in percent, by "0"; of all, if it uses none."""
        all_gpus = self.columns("gpu", "used_percent")
        in_use = {name: values for name, values in all_gpus.items() if max(measured(values)) > 0}
        return in_use or all_gpus

    def cpu(self) -> Values:
        """Return how full the CPU is, in percent: all cores, or the container's quota if it used more of that."""
        used, quota = self.column("cpu/all/used_percent"), self.column("cpu/all/quota_cores")
        cores = len(self.cores()) or self.machine.cores
        if not used or not quota or not cores:
            return used
        own = self.column("cpu/container/used_cores")
        # Without it, the machine's use stands for the container's.
        own = own or [value * cores / 100 for value in used]
        return [
            max(value, min(100 * container / limit, 100.0)) if 0 < limit < cores else value
            for value, container, limit in zip(used, own, quota, strict=True)
        ]

    def first_step_s(self) -> float | None:
        """Return the time at which the first rank had finished its first step, None if no step is known."""
        return min((steps.end_s[0] for steps in self.steps.values() if steps.end_s), default=None)

    def last_step_s(self) -> float | None:
        """Return the time at which the last step of any rank ended."""
        return max((steps.end_s[-1] for steps in self.steps.values() if steps.end_s), default=None)


def _number(name: str) -> tuple[str, int]:
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits) if digits else -1
