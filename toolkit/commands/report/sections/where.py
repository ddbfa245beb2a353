"""Builds the section "where-time-went": the paid seconds, divided by what they were spent on, also in money."""

import stat
from collections.abc import Sequence
from pathlib import Path

from toolkit import folders
from toolkit.commands.jobs.data import JobData
from toolkit.commands.report.model import Block, Cell, Part, Shares, Table, Tone, Words, make_table
from toolkit.commands.report.sections import start_up
from toolkit.commands.report.sections.ledger import NAMES, JobTimes, divide_time
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import count_words, format_duration
from toolkit.job.outcome import Exit
from toolkit.series import pauses
from toolkit.series.start_up import read as read_start

# Title, tone and formula of each part.
TITLES: dict[str, tuple[str, Tone, str]] = {
    "start-up": ("start-up", "plain", "from the job's start to the start of each rank's first step"),
    "first step": (
        "first step",
        "warn",
        "by how much the first step's forward, backward and optimizer took longer than the median step's: compiling, "
        "tuning, allocating",
    ),
    "evaluation": (
        "evaluation",
        "plain",
        "from the end of a step to the end of the last call of a module with gradients off before the next step",
    ),
    "collection": ("garbage collection", "warn", "Python's garbage collections in the thread that trains, by step"),
    "pause": (
        "other",
        "warn",
        "from the end of a step to the first call of a module with gradients on, less the parts above",
    ),
    "data": ("data wait", "warn", "time inside of the data loader's next(), by step"),
    "straggler": (
        "straggler wait",
        "warn",
        "by step: how much earlier a rank was ready than the last one, as far as its backward (or forward) took longer "
        "than the shortest of all ranks",
    ),
    "checkpoints": ("checkpoints", "plain", "time inside of torch.save or status.holding_checkpoint, by step"),
    "lost": (
        "work lost since the last checkpoint",
        "bad",
        "from the last checkpoint before a failure to the failure, and before a spot interruption to the hosts' end",
    ),
    "idle": (
        "idle after the failure",
        "bad",
        "from a failure to the job's end, or to the first step after the restart; a hang fails with its last step",
    ),
    "training": ("training", "good", "forward, backward and optimizer of each step, less the straggler wait"),
}
UNEXPLAINED = "unexplained"
# A larger part of the time that is unexplained wants a reason.
MOST = 0.1
INSTALLERS = ("pip", "uv")  # The processes that install requirements (train/source/installer.py).
MISSING = (
    "The times of the job's start and end are not known: no outcome, metric or monitor file of this job has any. "
    "`toolkit run` notes both in job.json."
)


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "where-time-went"."""
    job = material.job
    total_s = job.billable(material.now_s)
    if material.start_s is None or material.end_s is None or not total_s:
        return [Words(text=MISSING)]
    starts = _list_starts(material)
    times = [measure_times(start) for start in starts]
    parts = _divide_total(total_s, starts, times)
    blocks: list[Block] = [
        Shares(
            id="ledger",
            title="Where the time went",
            unit="s",
            parts=tuple(_build_part(name, seconds, material) for name, seconds in parts.items() if seconds),
            total=total_s,
            note=f"{_describe_hosts(len(job.hosts), total_s)} {_build_note(starts, times)}"
            f"{_name_empty(parts, material)}",
        )
    ]
    blocks += start_up.build_blocks(measure_starts(material))
    if material.price is not None:
        blocks.append(_build_money_table(parts, total_s, material.price))
    missing = [host.name for host in job.hosts if host.name not in material.steps]
    if not material.steps and parts[UNEXPLAINED] > MOST * total_s:
        reason = _explain_missing_steps(material)
        blocks.append(Words(text=f"The steps of this job were not measured, so most of it is unexplained. {reason}"))
    elif material.steps and missing:
        blocks.append(Words(text=f"No steps were measured on {', '.join(missing)}.", tone="warn"))
    return blocks


def measure_starts(material: Material) -> list[start_up.StartUp]:
    """Return the start of each host that was measured."""
    if material.start_s is None:
        return []
    measured = []
    for host in material.job.hosts:
        start = read_start(host.monitor) if host.name in material.steps else None
        if start is not None:
            measured.append(start_up.measure(host.name, material.start_s, start, material.steps[host.name]))
    return [start for start in measured if start is not None]


def _list_starts(material: Material) -> list[Material]:
    """Return the material of each start of the job whose start and end are known."""
    job = material.job
    starts = [
        material if start is job else Material(start, now_s=material.now_s, price=material.price)
        for start in job.starts()
    ]
    return [start for start in starts if start.start_s is not None and start.end_s is not None]


def _divide_total(total_s: float, starts: Sequence[Material], times: Sequence[JobTimes]) -> dict[str, float]:
    """Return the seconds of each of NAMES and of UNEXPLAINED, which add up to *total_s*."""
    divided = [
        divide_time(start_times, [host.name for host in start.job.hosts], start.steps)
        for start_times, start in zip(times, starts, strict=True)
    ]
    parts = {name: sum(seconds[name] for start in divided for seconds in start.values()) for name in NAMES}
    parts[UNEXPLAINED] = total_s - sum(parts.values())
    if parts[UNEXPLAINED] < 0:  # The platform rounds its seconds.
        parts[max(NAMES, key=lambda name: parts[name])] += parts[UNEXPLAINED]
        parts[UNEXPLAINED] = 0.0
    return parts


def _build_part(name: str, seconds: float, material: Material) -> Part:
    if name not in TITLES:
        return Part(name=name, value=seconds, formula=_explain_rest(material))
    title, tone, formula = TITLES[name]
    return Part(name=title, value=seconds, formula=formula, tone=tone)


def measure_times(material: Material) -> JobTimes:
    """Return the times by which the ledger divides."""
    job = material.job
    assert material.start_s is not None and material.end_s is not None
    if job.was_interrupted:
        return JobTimes(
            start_s=material.start_s,
            end_s=material.end_s,
            failures=(*_list_failures(job), material.end_s),
            failed=True,
            saved=() if job.checkpoint_s is None else (job.checkpoint_s,),
            ranks_began=_list_rank_starts(job),
            interrupted=True,
        )
    failures = _list_failures(job)
    ended_s = _find_failure_s(material)
    if ended_s is not None:
        failures.append(ended_s)
    return JobTimes(
        start_s=material.start_s,
        end_s=material.end_s,
        failures=tuple(sorted(failures)),
        failed=ended_s is not None,
        saved=tuple(
            sorted(
                {written_s for host in job.hosts for written_s in _list_write_times(host.output.parent / "checkpoints")}
            )
        ),
        late_s={
            host.name: {
                rank: (late.late_saving_s, late.late_evaluation_s) for rank, late in pauses.read(host.monitor).items()
            }
            for host in job.hosts
        },
        ranks_began=_list_rank_starts(job),
    )


def _list_failures(job: JobData) -> list[float]:
    """Return when the attempts failed that restarts of the ranks followed."""
    return [restart.failed_ns / 1e9 for restart in job.restarts if restart.failed_ns]


def _list_rank_starts(job: JobData) -> dict[str, float]:
    """Return when the first rank of each host was started."""
    return {
        host.name: min(starts) / 1e9
        for host in job.hosts
        if host.outcome and (starts := _list_process_starts(host.outcome.exits))
    }


def _list_process_starts(exits: Sequence[Exit]) -> list[int]:
    """Return when the ranks were started; of a script without ranks, when its processes were.

    Where the installation failed, no rank was started: its end, since until then all was start-up.
    """
    started = [process for process in exits if process.started_ns]
    if started and all(process.process in INSTALLERS for process in started):
        return [max(process.ended_ns or process.started_ns for process in started)]
    return [process.started_ns for process in started if process.rank is not None] or [
        process.started_ns for process in started
    ]


def _find_failure_s(material: Material) -> float | None:
    """Return when the job failed: a hang with its last step; a vanished host with its last sample."""
    job = material.job
    if job.status in ("succeeded", "running"):
        return None  # A script may fail by itself a moment before the job is stopped.
    if job.outcome is not None and job.outcome.cause.kind == "Hang" and material.steps:
        return max(float(table.end_s[-1]) for table in material.steps.values())
    return material.failed_s


def _list_write_times(folder: Path) -> set[float]:
    """Return when the files below *folder* were last written."""
    written = set()
    for entry in folders.walk(folder, folders.named_elsewhere):
        try:
            file_status = folders.status(entry.path)
        except OSError:
            continue
        if file_status is not None and stat.S_ISREG(file_status.st_mode):
            written.add(file_status.st_mtime)
    return written


def _explain_rest(material: Material) -> str:
    if not material.steps:
        return "the whole less all other parts; without measured steps that is most of it"
    return "the whole less all other parts: what ranks did between and after their steps, and outside of them"


def _describe_hosts(count: int, total_s: float) -> str:
    return f"{count_words(count, 'host')}, {format_duration(total_s / count)}{' each' if count > 1 else ''}."


def _build_note(starts: Sequence[Material], times: Sequence[JobTimes]) -> str:
    note = "The parts add up to the seconds that are paid for."
    if len(starts) > 1:
        note += f" They are of all {len(starts)} starts; nothing is paid between an interruption and the next start."
    if any(_lost_everything(start_times, start) for start_times, start in zip(times, starts, strict=True)):
        which = "an interruption" if any(start_times.interrupted for start_times in times) else "a failure"
        note += f" No checkpoint was seen, so all steps before {which} are lost."
    return note


def _name_empty(parts: dict[str, float], material: Material) -> str:
    """Return the sentence on the parts that took no time, "" where no steps are known, of which most are parts."""
    titles = [TITLES[name][0] for name, seconds in parts.items() if name in TITLES and not seconds]
    return f" No time went into: {', '.join(titles)}." if titles and material.steps else ""


def _lost_everything(times: JobTimes, material: Material) -> bool:
    """True if something was lost and no checkpoint was seen before."""
    if not times.failures or not material.steps or times.saved:
        return False
    return times.interrupted or not any(bool((table.checkpoint_s > 0).any()) for table in material.steps.values())


def _explain_missing_steps(material: Material) -> str:
    if material.samples:
        return (
            "Steps are seen where the script uses a torch optimizer, Keras, smppy.annotate or "
            "toolkit.status.heartbeat (docs/status.md)."
        )
    return material.why_unmeasured


def _build_money_table(parts: dict[str, float], total_s: float, price: float) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (TITLES[name][0] if name in TITLES else name, seconds, seconds / total_s * 100, seconds / 3600 * price)
        for name, seconds in parts.items()
    )
    return make_table(
        "money",
        "In money",
        (
            "part",
            ("time", "s"),
            ("share", "percent"),
            ("cost", "", f"seconds / 3600 x {price:g}, the price of one host for an hour"),
        ),
        rows,
        total=("total", total_s, 100.0, total_s / 3600 * price),
        note=f"At {price:g} for one host and hour.",
    )
