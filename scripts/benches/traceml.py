"""Run a healthy, a starved and a failed job under this toolkit and under TraceML 0.5.0: what each says, and its cost.

    scripts/bench traceml [--steps N] [--rounds N] [--keep FOLDER]

says    the first words of each tool's report of the same script, whether its page names the exception, the page's size
cost    milliseconds a step: the script alone, under `toolkit run` without and with its monitor, under TraceML's
        automatic instrumentation; the least of the rounds, which take turns

The starved job's data set computes 2 ms an image in the training process. The failed one raises ValueError at two
thirds. TraceML and torch for CPUs go into a venv of their own under .cache/ (1 GB). --keep: where the pages stay.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import ROOT, environment, in_turns, parser, print_machine, print_table

VERSION = "0.5.0"
OURS = ROOT / ".venv"
TORCH = "torch==2.13.0"
SCRIPT = """
import argparse, contextlib, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--case", default="healthy")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--traceml", type=int, default=0)
options = parser.parse_args()
traced = lambda model: contextlib.nullcontext()
if options.traceml:
    import traceml_ai
    traceml_ai.init(mode="auto")
    traced = traceml_ai.trace_step

class Images(Dataset):
    def __len__(self):
        return options.steps * 32
    def __getitem__(self, index):
        if options.case == "starved":  # Decoding, on the CPU.
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
        return torch.randn(64, generator=torch.Generator().manual_seed(index)), index % 10

torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters())
loss_of = nn.CrossEntropyLoss()
took = []
for step, (images, labels) in enumerate(DataLoader(Images(), batch_size=32), 1):
    begun = time.perf_counter()
    with traced(model):
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    took.append(time.perf_counter() - begun)
    if options.case == "failed" and step == options.steps * 2 // 3:
        raise ValueError("expected labels below 10, found 12 in shard 7")
    if step % 10 == 0:
        print(f"step={step} loss={loss.item():.4f}", flush=True)
print(f"step_ms={sorted(took)[len(took) // 2] * 1000:.3f}")
"""


def installed() -> Path:
    """Return the programs of the environment that has TraceML."""
    index = subprocess.run(
        [ROOT / "scripts/torch-index", sys.executable, TORCH], check=True, capture_output=True, text=True
    ).stdout.split()
    programs = environment(f"traceml-{VERSION}", [*index, TORCH], [f"traceml-ai=={VERSION}"])
    if programs is None:
        raise SystemExit("bench: pip could not install TraceML")
    return programs


def step_ms(text: str) -> float:
    found = re.search(r"step_ms=([0-9.]+)", text)
    if found is None:
        sys.exit(f"bench: the script did not come to its end:\n{text[-3000:]}")
    return float(found[1])


class Bench:
    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps, self._jobs = folder, steps, 0
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.programs = installed()

    def theirs(self, case: str, name: str) -> tuple[int, str, Path]:
        """Run *case* under TraceML; return exit code, what it printed, and its page."""
        words = [self.programs / "traceml", "run", "--html-report", "--logs-dir", "traceml", "--run-name", name]
        words += ["train.py", "--args", "--case", case, "--steps", str(self.steps), "--traceml", "1"]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, self.folder / "traceml" / name / "final_summary.html"

    def ours(self, case: str, name: str, *, monitor: bool = True) -> tuple[int, str, Path]:
        """Run *case* under `toolkit run`, in the same interpreter environment as our tests."""
        job = self.folder / name
        given = [f"--hyperparameter=case={case}", f"--hyperparameter=steps={self.steps}"]
        done = subprocess.run(
            [OURS / "bin/toolkit", "run", self.script, "--job-dir", job, *given],
            env={**os.environ, "TOOLKIT_MONITOR": str(int(monitor))},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr, job

    def alone(self) -> float:
        words = [OURS / "bin/python", self.script, "--steps", str(self.steps)]
        return step_ms(subprocess.run(words, cwd=self.folder, capture_output=True, text=True).stdout)

    def says(self) -> Iterator[tuple[object, ...]]:
        """Yield the lines of the table of what each tool says."""
        for case in ("healthy", "starved", "failed"):
            code, text, page = self.theirs(case, f"says-{case}")
            verdict = " ".join(
                line.strip("| ").strip() for line in text.splitlines() if line.startswith(("|  Verdict", "|  Why"))
            )
            yield case, f"TraceML {VERSION}", code, verdict, *of_page(case, page)
            code, _, job = self.ours(case, f"says-{case}")
            report = [OURS / "bin/toolkit", "report", job]
            subprocess.run([*report, "-o", job / "page.html"], check=True, stdout=subprocess.DEVNULL)
            as_json = subprocess.run(
                [*report, "--format", "json", "-o", "-"], check=True, stdout=subprocess.PIPE
            ).stdout
            yield case, "this toolkit", code, json.loads(as_json)["summary"], *of_page(case, job / "page.html")

    def cost(self, rounds: int) -> Iterator[tuple[str, ...]]:
        """Yield the lines of the table of milliseconds a step."""
        ways = {
            "alone": self.alone,
            "toolkit run, monitor off": lambda: step_ms(self.ours("healthy", self.new_name(), monitor=False)[1]),
            "toolkit run, monitor on": lambda: step_ms(self.ours("healthy", self.new_name())[1]),
            f"TraceML {VERSION}, automatic": lambda: step_ms(self.theirs("healthy", self.new_name())[1]),
        }
        best = {name: min(took_ms) for name, took_ms in in_turns(ways, rounds).items()}
        for name, ms in best.items():
            yield name, f"{ms:.3f}", f"{(ms / best['alone'] - 1) * 100:+.1f} %"

    def new_name(self) -> str:
        self._jobs += 1
        return f"cost-{self._jobs}"


def of_page(case: str, page: Path) -> tuple[str, str]:
    """Return whether *page* names the exception, and its size."""
    html = page.read_text(encoding="utf-8")
    is_named = "n/a" if case != "failed" else "yes" if "ValueError" in html else "no"
    return is_named, f"{len(html.encode()) / 1000:.0f} kB"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--keep", type=Path)
    words = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-traceml-") as scratch:
        folder = words.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder.resolve(), words.steps)
        print_machine()
        head = ("job", "tool", "exit code", "its first words", "exception on the page", "page")
        print_table(head, bench.says())
        print_table(("the median step of 150, the least of the rounds", "ms", "over alone"), bench.cost(words.rounds))


if __name__ == "__main__":
    main()
