"""Reads from the monitor's samples what machines a job had, who else used them, and the CPU seconds of its steps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolkit.commands.jobs.data import HostData, JobData
from toolkit.records import Record
from toolkit.series import monitor_document
from toolkit.series.arrays import has_numpy, numpy

if TYPE_CHECKING:
    from toolkit.series.reduction import Floats
    from toolkit.series.sample_reader import Samples
    from toolkit.series.step_records import StepTable

    # The samples of a host, its ranks, and when their first and last step ended.
    _HostSamples = tuple[Samples, Sequence[int], float, float]

SHARED = 0.25  # Of all cores: from here on a machine is called shared.


class MachineUse(Record, frozen=True, kw_only=True):
    """The machines of a job, while it made its steps."""

    hosts: tuple[str, ...] = ()
    """What each host has, in words; empty: not known."""
    others_share: float | None = None
    """The share of all cores, 0 to 1, that other processes than the job's ranks and its monitor used. None: not
    known."""
    step_cpu_s: Mapping[int, float] = {}
    """CPU seconds of all ranks, with their children, by step."""

    @property
    def is_shared(self) -> bool:
        """True if other processes used so much that times say little."""
        return self.others_share is not None and self.others_share > SHARED


def measure_machines(job: JobData) -> MachineUse:
    """Return what the monitor of each host saw."""
    descriptions = tuple(filter(None, (_describe_host(host) for host in job.hosts)))
    if not has_numpy():
        return MachineUse(hosts=descriptions)
    from toolkit.series import measured, step_records

    step_cpu_s: dict[int, float] = {}
    # By the machine's boot: hosts of `toolkit run` share one, and what all of them use is the job's.
    machines: dict[str, list[_HostSamples]] = {}
    for host in job.hosts:
        steps = step_records.read(host.monitor / "steps")
        samples = measured.of_host(host.monitor, host.name)
        if samples.span() is None or not len(steps):
            continue
        for rank in steps.ranks:
            for step, seconds in _compute_step_cpu(samples, rank, steps.of(rank)):
                step_cpu_s[step] = step_cpu_s.get(step, 0.0) + seconds
        about = monitor_document.read(host.monitor / "monitor.json")
        machine = (about.machine.boot_id if about is not None else "") or host.name
        machines.setdefault(machine, []).append((samples, steps.ranks, float(steps.end_s[0]), float(steps.end_s[-1])))
    shares = [share for hosts in machines.values() if (share := _compute_others_share(hosts)) is not None]
    return MachineUse(hosts=descriptions, others_share=max(shares, default=None), step_cpu_s=step_cpu_s)


def _describe_host(host: HostData) -> str:
    about = monitor_document.read(host.monitor / "monitor.json")
    if about is None:
        return ""
    cores = "" if about.machine.cores is None else f"{about.machine.cores} cores"
    return ", ".join(filter(None, (cores, *sorted(about.machine.gpus))))


def _compute_step_cpu(samples: "Samples", rank: int, steps: "StepTable") -> list[tuple[int, float]]:
    """Return (step, CPU seconds) of *rank*. A step shorter than a sample has its part of that sample."""
    np = numpy()
    name = f"rank/{rank}/cpu_percent"
    if len(steps) < 2 or name not in {column.name for column in samples.columns}:
        return []
    series = samples.series(name)
    if len(series.x) < 2:
        return []
    used_s = np.concatenate(([0.0], np.cumsum(np.nan_to_num(series.mean[1:]) / 100 * np.diff(series.x))))
    at_ends_s = np.interp(steps.end_s, series.x, used_s)
    return list(zip(steps.step[1:].tolist(), np.diff(at_ends_s).tolist(), strict=True))


def _compute_others_share(hosts: "Sequence[_HostSamples]") -> float | None:
    """Return the share of all cores of one machine that no rank or monitor of *hosts*, which are on it, used."""
    first_samples, _, start_s, end_s = hosts[0]
    names = {column.name for column in first_samples.columns}
    cores = sum(name.startswith("cpu/core") and name.endswith("/used_percent") for name in names)
    if not cores or "cpu/all/used_percent" not in names:
        return None
    used = _average(first_samples, "cpu/all/used_percent", start_s, end_s)
    own_percent = sum(_measure_own_percent(samples, ranks, start_s, end_s) for samples, ranks, *_ in hosts)
    return min(max((used - own_percent / cores) / 100, 0.0), 1.0)


def _measure_own_percent(samples: "Samples", ranks: Sequence[int], start_s: float, end_s: float) -> float:
    """Return what the *ranks* of a host and its monitor used, in percent of one core."""
    names = {column.name for column in samples.columns}
    own = (*(f"rank/{rank}/cpu_percent" for rank in ranks), "monitor/self/cpu_percent")
    return sum(_average(samples, name, start_s, end_s) for name in own if name in names)


def _average(samples: "Samples", name: str, start_s: float, end_s: float) -> float:
    """Return the mean of the column *name* over time, 0 where nothing was measured."""
    np = numpy()
    series = samples.series(name, start_s, end_s)
    spans: Floats = np.diff(series.x, prepend=start_s)
    is_known = np.isfinite(series.mean) & (spans > 0)
    weights = spans[is_known]
    return float(np.average(series.mean[is_known], weights=weights)) if weights.sum() > 0 else 0.0
