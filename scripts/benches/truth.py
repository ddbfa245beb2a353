"""Run jobs with a planted truth and compare it with what their pages say.

    scripts/bench truth [--only WORDS] [--busy] [--keep FOLDER] [--again] [--figures FILE]

Each job is a script of scripts/benches/truth_jobs, which measures its parts by a clock of its own. A healthy job must
have no finding; a troubled one is named if its first finding matches what was planted. The seconds of the page's ledger
are compared with the script's, each within 5 % or 0.3 s. --only: jobs named by one of WORDS (between semicolons);
--busy: another program holds one core meanwhile; --keep: where the jobs stay; --again: judge the jobs of an earlier run
in --keep anew, without running them; --figures: write the tables there, too (Markdown). Jobs whose package is in no bed
(webdataset, datasets) are left out, and named, unless it is installed in .venv.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import ROOT, parser, print_machine

JOBS_FOLDER = ROOT / "scripts" / "benches" / "truth_jobs"
WITHIN_SHARE, WITHIN_S = 0.05, 0.3
# The script's parts, by the ledger's names.
LEDGER = {
    "data": "data wait",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "garbage collection": "garbage collection",
    "other": "other",
    "first step": "first step",
    "training": "training",
}
WAITS = "straggler wait"


@dataclass(frozen=True)
class PlantedJob:
    """A job with a known truth."""

    name: str
    """What it does, for people."""
    script: str
    """A file of scripts/benches/truth_jobs."""
    options: dict[str, float | str] = field(default_factory=dict)
    """The script's options."""
    named: str = ""
    """A regular expression that the first finding of a troubled job matches; empty: the job is healthy."""
    ranks: int = 1
    """Ranks of each host."""
    hosts: int = 1
    """Hosts, each a process of this machine."""
    bed: str = ".venv"
    """The environment whose Python runs the script."""
    needs: str = ""
    """A package that is in no bed; without it in the job's environment the job is left out, and named."""
    fails: bool = False
    """The job is meant to end with a failure."""


def healthy() -> Iterator[PlantedJob]:
    """Yield the healthy jobs."""
    loop = "loop.py"
    for seed in (1, 2):
        short = {"seed": seed}
        yield PlantedJob(f"plain loop, seed {seed}", loop, {**short, "steps": 600})
        yield PlantedJob(f"plain loop of 2 s, seed {seed}", loop, {**short, "steps": 120})
        yield PlantedJob(f"own generator, fast, seed {seed}", loop, {**short, "data": "generator"})
        yield PlantedJob(f"iterable data set, fast, seed {seed}", loop, {**short, "data": "iterable"})
        yield PlantedJob(f"data loader without workers, seed {seed}", loop, {**short, "data": "loader", "steps": 400})
        yield PlantedJob(
            f"data loader, one worker, seed {seed}", loop, {**short, "data": "loader", "workers": 1, "width": 1024}
        )
        yield PlantedJob(
            f"evaluation each 50th step, seed {seed}",
            loop,
            {**short, "steps": 500, "evaluate-every": 50, "evaluate-batches": 20},
        )
        yield PlantedJob(
            f"evaluation after each epoch, seed {seed}",
            loop,
            {**short, "steps": 500, "epochs": 5, "evaluate-every": 100, "evaluate-batches": 60},
        )
        yield PlantedJob(
            f"small checkpoints, seed {seed}", loop, {**short, "steps": 500, "save-every": 100, "save-mb": 4}
        )
        yield PlantedJob(f"saves after the last step, seed {seed}", loop, {**short, "save-at-end": 3, "save-mb": 100})
        yield PlantedJob(f"gradient accumulation of 4, seed {seed}", loop, {**short, "steps": 600, "accumulate": 4})
        yield PlantedJob(f"two optimizers, seed {seed}", loop, {**short, "optimizers": 2})
        yield PlantedJob(f"LBFGS, seed {seed}", loop, {**short, "steps": 80, "lbfgs": 1})
        yield PlantedJob(f"bfloat16, seed {seed}", loop, {**short, "steps": 80, "bfloat16": 1, "width": 256})
        yield PlantedJob(f"batches of 1 to 4 times the size, seed {seed}", loop, {**short, "lengths": 4})
        yield PlantedJob(f"two ranks, seed {seed}", loop, {**short, "ddp": 1}, ranks=2)
        yield PlantedJob(f"two hosts, seed {seed}", loop, {**short, "ddp": 1}, hosts=2)
        yield PlantedJob(
            f"four ranks on two cores, seed {seed}", loop, {**short, "ddp": 1, "width": 256}, ranks=2, hosts=2
        )
        yield PlantedJob(f"few prints, seed {seed}", loop, {**short, "print-every": 0})
        yield PlantedJob(f"a print each step, seed {seed}", loop, {**short, "print-every": 1})
        yield PlantedJob(f"large batches, seed {seed}", loop, {**short, "steps": 60, "batch": 512, "width": 1024})
        yield PlantedJob(f"Trainer, seed {seed}", "trainer.py", {"steps": 150 + seed}, bed=".beds/transformers")
        yield PlantedJob(f"Lightning, seed {seed}", "lightning_job.py", {"steps": 300 + seed}, bed=".beds/transformers")
        yield PlantedJob(
            f"Accelerate, seed {seed}", "accelerate_job.py", {"steps": 300 + seed}, bed=".beds/transformers"
        )
        yield PlantedJob(f"Keras fit, seed {seed}", "keras_job.py", {"steps": 900 + seed}, bed=".beds/tensorflow")
    yield PlantedJob(
        "Trainer with evaluation", "trainer.py", {"steps": 200, "evaluate-every": 50}, bed=".beds/transformers"
    )
    yield PlantedJob("Keras fit with evaluation", "keras_job.py", {"steps": 900, "evaluate": 1}, bed=".beds/tensorflow")
    yield PlantedJob("a loop with GradientTape", "keras_job.py", {"steps": 900, "loop": 1}, bed=".beds/tensorflow")
    yield PlantedJob(
        "Lightning with validation", "lightning_job.py", {"steps": 300, "evaluate-every": 100}, bed=".beds/transformers"
    )


def troubled() -> Iterator[PlantedJob]:
    """Yield the jobs with a planted trouble."""
    loop = "loop.py"
    yield PlantedJob("slow own generator", loop, {"data": "generator", "data-ms": 14}, "wait for.* data|data wait")
    yield PlantedJob("slow iterable data set", loop, {"data": "iterable", "data-ms": 30}, "data loader|data wait")
    for library in ("webdataset", "datasets"):
        yield PlantedJob(
            f"slow stream of {library}",
            "streams.py",
            {"library": library, "data-ms": 30, "steps": 200},
            "data loader|data wait",
            needs=library,
        )
    yield PlantedJob("loader without workers", loop, {"data": "loader", "data-ms": 30}, "data loader")
    yield PlantedJob(
        "loader with one slow worker", loop, {"data": "loader", "data-ms": 30, "workers": 1}, "data loader"
    )
    yield PlantedJob(
        "workers started in each epoch",
        loop,
        {"data": "loader", "workers": 2, "epochs": 10, "steps": 100},
        "data loader.*(start|persistent)",
    )
    yield PlantedJob("data on a slow disk", loop, {"data": "disk", "disk-mb": 32, "steps": 200}, "disk")
    yield PlantedJob("garbage collection each 10th step", loop, {"gc-every": 10, "steps": 200}, "garbage collection")
    yield PlantedJob("a file lock in each step", loop, {"lock-ms": 60, "steps": 150}, "(?i)wait.*lock|lock")
    yield PlantedJob(
        "an answer from the network in each step", loop, {"network-ms": 60, "steps": 150}, "(?i)socket|network"
    )
    yield PlantedJob("torch.compile", loop, {"compile": 1, "steps": 200}, "first step.*compil")
    yield PlantedJob("first step of 12 s", loop, {"first-step-s": 12}, "first step")
    yield PlantedJob(
        "steps that grow", loop, {"grows-ms": 100, "steps": 300}, "(?i)slow(er)? .*over the job|steps slow down"
    )
    yield PlantedJob("one step of 10 s", loop, {"long-step-s": 10, "steps": 150}, "one step|1 step")
    yield PlantedJob("every other step is long", loop, {"alternate-ms": 40}, "alternate|every 2nd|every other")
    yield PlantedJob(
        "a rank a third slower", loop, {"ddp": 1, "slow-rank": 1, "slow-ms": 8, "width": 384}, "rank 1", ranks=2
    )
    yield PlantedJob(
        "a rank twice as slow, two hosts", loop, {"ddp": 1, "slow-rank": 1, "slow-ms": 40}, "rank 1", hosts=2
    )
    yield PlantedJob("16 threads on 2 cores", loop, {"threads": 16, "width": 1024, "steps": 150}, "threads")
    yield PlantedJob("a loss that grows a million times", loop, {"loss": "explodes"}, "loss.*(grow|rise|rose|times)")
    yield PlantedJob("a loss of NaN", loop, {"loss": "nan"}, "(?i)nan")
    yield PlantedJob("checkpoints of a quarter of the time", loop, {"save-every": 20, "save-mb": 150}, "checkpoint")
    yield PlantedJob("memory that leaks", loop, {"leak-mb": 0.5, "steps": 7000}, "memory")
    yield PlantedJob("evaluation of half the time", loop, {"evaluate-every": 10, "evaluate-batches": 40}, "evaluation")
    yield PlantedJob("an exception", loop, {"fails-at": 100}, "expected labels below 10", fails=True)
    yield PlantedJob(
        "Trainer with slow data", "trainer.py", {"data-ms": 60, "steps": 120}, "data", bed=".beds/transformers"
    )
    yield PlantedJob(
        "Lightning with slow data", "lightning_job.py", {"data-ms": 60, "steps": 150}, "data", bed=".beds/transformers"
    )
    yield PlantedJob(
        "Keras fit with a slow generator",
        "keras_job.py",
        {"data": "generator", "data-ms": 20},
        "data",
        bed=".beds/tensorflow",
    )


@dataclass
class Verdict:
    """What the page of a job says beside its truth."""

    job: PlantedJob
    first_words: str
    findings: list[str]
    ledger: dict[str, float]
    truth: dict[str, float]

    @property
    def is_right(self) -> bool:
        if not self.job.named:
            return not self.findings
        words = self.first_words if self.job.fails or not self.findings else self.findings[0]
        return re.search(self.job.named, words) is not None

    def wrong_parts(self) -> list[str]:
        """Return the parts of the ledger that are further from the truth than allowed."""
        wrong = []
        for part, name in LEDGER.items():
            if part not in self.truth and "first step" not in self.truth:
                continue  # A framework's own loop, of which the script measures these parts alone.
            truth_s, ledger_s = self.truth.get(part, 0.0), self.ledger.get(name, 0.0)
            if part == "training":  # The script's backward pass waits for the gradients of other ranks.
                ledger_s += self.ledger.get(WAITS, 0.0)
            if abs(truth_s - ledger_s) > max(WITHIN_SHARE * truth_s, WITHIN_S):
                wrong.append(f"{name} {ledger_s:.1f} s ({truth_s:.1f})")
        return wrong


def is_installed(job: PlantedJob) -> bool:
    """Return whether the environment of *job* has the package that it needs."""
    words = [ROOT / job.bed / "bin" / "python", "-c", f"import {job.needs}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def run(job: PlantedJob, folder: Path) -> None:
    """Run *job* in *folder*."""
    shutil.rmtree(folder, ignore_errors=True)
    options = [f"--hyperparameter={name}={value}" for name, value in job.options.items()]
    if job.ranks > 1 or job.hosts > 1:
        options += [f"--processes-per-host={job.ranks}", f"--hosts={job.hosts}", "--distribution=torchrun"]
    python = ROOT / job.bed / "bin" / "python"
    command = [python, "-m", "toolkit", "run", JOBS_FOLDER / job.script, "--job-dir", folder, "--quiet", *options]
    metric = "--metric=loss=loss=([0-9.e+naif-]+)"
    here = f"--env=PYTHONPATH={ROOT}"  # A bed may have a toolkit of its own.
    ended = subprocess.run([*command, metric, here], capture_output=True, text=True, cwd=ROOT, check=False)
    if (ended.returncode != 0) != job.fails:
        sys.exit(f"bench: {job.name}: exit code {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}")


def judge(job: PlantedJob, folder: Path) -> Verdict:
    """Return what the page of *job* says."""
    command = [ROOT / ".venv/bin/python", "-m", "toolkit", "report", folder, "--format", "json", "-o", "-"]
    page = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    blocks = [(section["id"], block) for section in page["sections"] for block in section["blocks"]]
    findings = [
        f"{block['name']}: {block['text']}"
        for section, block in blocks
        if section == "findings" and block.get("type") == "Words" and block.get("tone") in ("warn", "bad")
    ]
    shares = next((block for _, block in blocks if block.get("type") == "Shares"), {"parts": []})
    ledger = {part["name"]: part["value"] for part in shares["parts"]}
    return Verdict(job, page["summary"], findings, ledger, read_truth(job, folder))


def read_truth(job: PlantedJob, folder: Path) -> dict[str, float]:
    """Return the seconds of each part by the script's own clock: the mean of a host's ranks, summed over hosts."""
    seconds: dict[str, float] = {}
    documents = [
        json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("hosts/*/opt/ml/output/data/truth-*.json")
    ]
    for document in documents:
        parts = document["parts"]
        steps = sorted(document["steps"])
        if "forward" in parts:
            parts["training"] = sum(parts.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
        if steps:
            first_s = max(document["steps"][0] - steps[len(steps) // 2], 0.0)
            parts["first step"] = first_s
            parts["training"] -= first_s
        for name, value in parts.items():
            seconds[name] = seconds.get(name, 0.0) + value / job.ranks
    return seconds


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the Markdown lines of the result."""
    lines = [
        "| job | planted | first on the page | right | parts of the ledger that are wrong (truth) |",
        "|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        first = (verdict.findings[0] if verdict.findings else verdict.first_words).replace("|", "\\|")[:140]
        right = "yes" if verdict.is_right else "**no**"
        planted = "trouble" if verdict.job.named else "healthy"
        lines.append(f"| {verdict.job.name} | {planted} | {first} | {right} | {'; '.join(verdict.wrong_parts())} |")
    healthy_ones = [verdict for verdict in verdicts if not verdict.job.named]
    troubled_ones = [verdict for verdict in verdicts if verdict.job.named]
    parts = sum(len(verdict.truth) for verdict in verdicts if verdict.truth)
    wrong = sum(len(verdict.wrong_parts()) for verdict in verdicts if verdict.truth)
    accused = sum(not verdict.is_right for verdict in healthy_ones)
    named = sum(verdict.is_right for verdict in troubled_ones)
    lines.append("")
    lines.append(
        f"{accused} of {len(healthy_ones)} healthy jobs accused; {named} of {len(troubled_ones)} troubles named first;"
        f" {wrong} parts of the ledger wrong, of {parts} measured."
    )
    return lines


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--only", default="")
    command_line.add_argument("--busy", action="store_true")
    command_line.add_argument("--keep", type=Path)
    command_line.add_argument("--again", action="store_true")
    command_line.add_argument("--figures", type=Path)
    options = command_line.parse_args()
    words = [word for word in options.only.split(";") if word]
    chosen = [job for job in (*healthy(), *troubled()) if not words or any(word in job.name for word in words)]
    print_machine()
    for job in [job for job in chosen if job.needs and not is_installed(job)]:
        chosen.remove(job)
        print(f"left out: {job.name}, since {job.bed} has no {job.needs} (pip install {job.needs})", flush=True)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    try:
        with tempfile.TemporaryDirectory(prefix="bench-truth-") as scratch:
            folder = (options.keep or Path(scratch)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            verdicts = []
            for job in chosen:
                job_folder = folder / re.sub(r"[^a-zA-Z0-9]+", "-", job.name)
                began = time.monotonic()
                if not options.again:
                    run(job, job_folder)
                verdict = judge(job, job_folder)
                verdicts.append(verdict)
                print(
                    f"{'ok  ' if verdict.is_right else 'NO  '} {job.name} ({time.monotonic() - began:.0f} s, load"
                    f" {os.getloadavg()[0]:.1f}): {verdict.findings or verdict.first_words}; {verdict.wrong_parts()}",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        if other is not None:
            other.kill()
    lines = table(verdicts)
    print("\n".join(lines))
    if options.figures:
        options.figures.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
