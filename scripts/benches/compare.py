"""Compare pairs of jobs whose difference is known, and count what the page's first words say.

    scripts/bench compare [--pairs N] [--intervals] [--seed N] [--figures FILE]
    scripts/bench compare --real N [--only PERCENT,...] [--runs N] [--figures FILE]

Without --real, the jobs are made up: their records are written as the monitor writes them, with steps whose noise is
that of real machines (steps that resemble their neighbours, drifts, bursts, single long steps, and runs that differ as
wholes), at rest, with other programs on half of the cores, and on all of them. --intervals: no records, the intervals
of the made-up steps alone, for hundreds of pairs; other programs then forbid no claim. --real: N pairs of jobs of
scripts/benches/truth_jobs/loop.py are run in turns on this machine, as it is, with --runs of each side. Planted:
percent of the CPU time of a step that the second side does not take (made up) or the first takes more (real).
"""

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT, numbers, parser, print_machine
from msgspec.structs import replace

from toolkit.commands import jobs
from toolkit.commands.report.compare.difference import compare_sides
from toolkit.commands.report.compare.measured import choose_labels, measure_job
from toolkit.commands.report.compare.savings import DEVIATION_AT_REST, DEVIATION_SHARED, compute_savings
from toolkit.commands.report.compare.verdict import Verdict, classify, decide
from toolkit.series.column import SampleColumn
from toolkit.series.sample_writer import SampleWriter
from toolkit.series.step_records import StepRecord, StepWriter

PLANTED = (0, 5, 10, 20, 50)
STATUSES = ("faster", "slower", "no difference", "not conclusive", "not comparable")
BEGAN_S = 1_795_000_000.0
STEPS = 300
STEP_S = 0.2
LOOP = ROOT / "scripts/benches/truth_jobs/loop.py"


@dataclass(frozen=True)
class Machine:
    """The noise of a machine, each as the standard deviation of a logarithm."""

    name: str
    """The name in the table."""
    others: float
    """The share of all cores that other programs use."""
    of_runs: float
    """By how much whole runs differ."""
    of_steps: float
    """By how much steps differ, which resemble their neighbours."""
    drift: float
    """From the first step to the last."""
    bursts: float
    """Bursts of a run, in the mean; each makes a twelfth of the steps 1.2 to 2 times as long."""


MACHINES = (
    Machine("at rest", 0.03, 0.01, 0.03, 0.01, 0.0),
    Machine("shared by half", 0.45, 0.04, 0.1, 0.03, 2.0),
    Machine("overloaded", 0.9, 0.08, 0.15, 0.05, 4.0),
)


def make_steps(machine: Machine, chance: random.Random, factor: float) -> tuple[list[float], float]:
    """Return the seconds of each step of a run, and the CPU seconds of a step."""
    run = math.exp(chance.gauss(0, machine.of_runs))
    drift, level = chance.gauss(0, machine.drift), chance.gauss(0, machine.of_steps)
    seconds = []
    for step in range(STEPS):
        level = 0.95 * level + math.sqrt(1 - 0.95**2) * chance.gauss(0, machine.of_steps)
        noise = math.exp(level + drift * step / STEPS + chance.gauss(0, 0.03))
        seconds.append(STEP_S * factor * run * noise * (chance.uniform(2, 6) if chance.random() < 0.01 else 1))
    start = 0
    while machine.bursts and start < STEPS:
        start += int(chance.expovariate(machine.bursts / STEPS)) + 1
        length, slower = int(chance.expovariate(12 / STEPS)) + 1, chance.uniform(1.2, 2)
        for step in range(start, min(start + length, STEPS)):
            seconds[step] *= slower
        start += length
    return seconds, STEP_S * factor * run * math.exp(chance.gauss(0, machine.of_runs / 2))


def write_job(folder: Path, machine: Machine, chance: random.Random, factor: float) -> Path:
    """Write the records of a made-up job, as the monitor writes them; return its folder."""
    seconds, cpu_s = make_steps(machine, chance, factor)
    monitor = folder / "output/monitor"
    monitor.mkdir(parents=True)
    (folder / "output/success").write_text("")
    about = {"host": "algo-1", "start_s": BEGAN_S, "interval_s": 0.5, "machine": {"cores": 2}}
    (monitor / "monitor.json").write_text(json.dumps(about))
    steps, end_s = StepWriter(monitor / "steps"), BEGAN_S
    records = []
    for step, took_s in enumerate(seconds, 1):
        end_s += took_s
        records.append(StepRecord(rank=0, step=step, end_s=end_s, step_s=took_s))
    steps.add(records)
    steps.close()
    names = ("cpu/all/used_percent", "cpu/core0/used_percent", "cpu/core1/used_percent", "rank/0/cpu_percent")
    writer = SampleWriter(monitor / "samples", tuple(SampleColumn(name=name, unit="%") for name in names))
    own = 100 * cpu_s * STEPS / (end_s - BEGAN_S)
    used = min(100 * machine.others + own / 2, 100.0)
    for number in range(int(2 * (end_s - BEGAN_S)) + 2):
        writer.add(BEGAN_S + number / 2, [used, used, used, own * chance.uniform(0.8, 1.2)])
    writer.close()
    return folder


def judge(first: Sequence[Path], second: Sequence[Path]) -> Verdict:
    """Return the page's first words on two sides."""
    read = [jobs.read(folder) for folder in (*first, *second)]
    measured = [
        measure_job(job, label, now_s=time.time(), epochs=None, gpus=None)
        for job, label in zip(read, choose_labels(read), strict=True)
    ]
    side = replace(measured[0], repeats=tuple(measured[1 : len(first)]))
    other = replace(measured[len(first)], repeats=tuple(measured[len(first) + 1 :]))
    return decide(side, other, compute_savings(side, other))


def judge_made_up(pairs: int, seed: int) -> Iterator[tuple[str, int, Counter[str]]]:
    """Yield the machine with its runs a side, what was planted, and how often each status came."""
    chance = random.Random(seed)
    for machine in MACHINES:
        for runs in (1, 3, 6):
            for planted in PLANTED:
                found: Counter[str] = Counter()
                for _ in range(pairs):
                    with tempfile.TemporaryDirectory(prefix="bench-compare-") as scratch:
                        sides = [
                            [
                                write_job(Path(scratch, f"{name}-{number}"), machine, chance, factor)
                                for number in range(runs)
                            ]
                            for name, factor in (("before", 1.0), ("after", 1 - planted / 100))
                        ]
                        found[judge(*sides).status] += 1
                yield f"{machine.name}, {runs} a side", planted, found


def judge_intervals(pairs: int, seed: int) -> Iterator[tuple[str, int, Counter[str]]]:
    """Yield as `judge_made_up` does, by the intervals of the steps alone."""
    chance = random.Random(seed)
    for machine in MACHINES:
        deviation = DEVIATION_AT_REST + (DEVIATION_SHARED - DEVIATION_AT_REST) * machine.others
        for runs in (1, 3, 6):
            for planted in PLANTED:
                found: Counter[str] = Counter()
                for _ in range(pairs):
                    first, second = (
                        [make_steps(machine, chance, factor)[0][1:] for _ in range(runs)]
                        for factor in (1.0, 1 - planted / 100)
                    )
                    difference = compare_sides(first, second, deviation)
                    assert difference is not None
                    found[classify(difference)] += 1
                yield f"{machine.name}, {runs} a side", planted, found


def run_job(folder: Path, planted_ms: float) -> Path:
    """Run a job whose steps take *planted_ms* of CPU time more; return its folder."""
    options = {"steps": 300, "width": 512, "slow-rank": 0, "slow-ms": planted_ms}
    words = [f"--hyperparameter={name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "toolkit", "run", LOOP, "--job-dir", folder, "--quiet", *words]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder


def measure_step_ms(folder: Path) -> float:
    """Return the CPU time of a step of a job."""
    job = measure_job(jobs.read(folder), "", now_s=time.time(), epochs=None, gpus=None)
    used_s = job.machine.step_cpu_s
    return 1000 * sum(used_s.values()) / len(used_s)


def judge_real(pairs: int, runs: int, planted_percents: Sequence[int]) -> Iterator[tuple[str, int, Counter[str]]]:
    """Yield as `judge_made_up` does, of jobs that are run in turns."""
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as scratch:
        step_ms = measure_step_ms(run_job(Path(scratch, "first"), 0.0))
        for planted in planted_percents:
            found: Counter[str] = Counter()
            planted_ms = step_ms * planted / (100 - planted)  # The second side, without it, saves so many percent.
            for pair in range(pairs):
                sides: dict[str, list[Path]] = {"before": [], "after": []}
                for number in range(runs):
                    for name in ("before", "after")[:: -1 if number % 2 else 1]:
                        folder = Path(scratch, f"{planted}-{pair}-{name}-{number}")
                        sides[name].append(run_job(folder, planted_ms if name == "before" else 0.0))
                verdict = judge(sides["before"], sides["after"])
                print(f"{planted} %: {verdict.status}: {verdict.text}", file=sys.stderr, flush=True)
                found[verdict.status] += 1
            yield f"this machine, {runs} a side", planted, found


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--pairs", type=int, default=20)
    command_line.add_argument("--intervals", action="store_true")
    command_line.add_argument("--seed", type=int, default=1)
    command_line.add_argument("--real", type=int, metavar="N")
    command_line.add_argument("--runs", type=int, default=1)
    command_line.add_argument("--only", type=numbers, default=list(PLANTED))
    command_line.add_argument("--figures", type=Path)
    options = command_line.parse_args()
    print_machine()
    rows = (
        judge_real(options.real, options.runs, options.only)
        if options.real
        else (judge_intervals if options.intervals else judge_made_up)(options.pairs, options.seed)
    )
    lines = [f"| machine, runs | planted | {' | '.join(STATUSES)} |", f"|---|---|{'---|' * len(STATUSES)}"]
    print("\n".join(lines), flush=True)
    for name, planted, found in rows:
        lines.append(f"| {name} | {planted} % | {' | '.join(str(found[status]) for status in STATUSES)} |")
        print(lines[-1], flush=True)
    if options.figures:
        options.figures.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
