"""scripts/official-examples: AWS's public examples, unedited, under `toolkit run` (docs/lab/official-examples.md).

examples.json names each script by repository, commit and path, with the SHA-256 of its files; its text is taken from a
checkout that the user gives. Each example trains twice: on ranks with its notebook's distribution, and in one process.
Where it can resume, the ranks save after half of the steps, and a second job goes on from what they saved.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.examples import data

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("examples.json")
STAND_INS = ROOT / "tests/programs/examples"
DEADLINE_S = 300
HEAD = (
    "| example | ranks | edits | ended | losses on ranks | in one process | largest difference |",
    "|---|---|---|---|---|---|---|",
)
MPI_OPTIONS = "-verbose -x orte_base_help_aggregate=0 -x NCCL_DEBUG=WARN -x SMP_DISABLE_D2D=1 -x RDMAV_FORK_SAFE=1"


class Job:
    """One `toolkit run` of an example."""

    def __init__(self, example: dict[str, Any], folder: Path, *, ranks: int, changes: dict[str, Any]) -> None:
        self.example, self.folder, self.ranks = example, folder, ranks
        self.parameters = {**example.get("parameters", {}), **changes.get("parameters", {})}
        self.hyperparameters = {**example.get("hyperparameters", {}), **changes.get("hyperparameters", {})}

    def distribution(self) -> dict[str, Any]:
        if self.example.get("library") == "dataparallel":
            return {"smdistributed": {"dataparallel": {"enabled": True}}}
        model_parallel = {"enabled": True, "parameters": self.parameters}
        mpi = {"enabled": True, "processes_per_host": self.ranks, "custom_mpi_options": MPI_OPTIONS}
        return {"smdistributed": {"modelparallel": model_parallel}, "mpi": mpi}

    def run(self, python: Path, source: Path, channels: Path, checkpoints: Path) -> tuple[str, list[float]]:
        """Return how the job ended, and the losses that it printed."""
        stand_ins = self.example.get("stand_ins", [])
        environ = {
            "PYTHONPATH": f"{STAND_INS / 'site'}",
            "TOOLKIT_EXAMPLE_STAND_INS": " ".join(stand_ins),
            "PATH": f"{python.parent}:{STAND_INS / 'cloud/bin'}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **self.example.get("env", {}),
        }
        command = [
            str(python),
            "-m",
            "toolkit",
            "run",
            str(source / self.example["script"]),
            "--plain",
            "--replace",
            "--source",
            str(source),
            "--job-dir",
            str(self.folder),
            "--checkpoints",
            str(checkpoints),
            "--distribution",
            json.dumps(self.distribution()),
            "--processes-per-host",
            str(self.ranks),
            "--disable-profiler",
            "--max-run",
            f"{DEADLINE_S}s",
        ]
        for channel in sorted(channels.iterdir()):
            command += ("--channel", f"{channel.name}={channel}")
        for name, value in self.hyperparameters.items():
            command += ("--hyperparameter", f"{name}={value}")
        for name, value in environ.items():
            command += ("--env", f"{name}={value}")
        outer = {**os.environ, "PATH": environ["PATH"]}
        done = subprocess.run(command, env=outer, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "output.txt").write_text(done.stdout)
        lines = [line for line in done.stdout.splitlines() if not re.search(r"mpirank:[1-9]|rank [1-9]\d*[,\]]", line)]
        losses = [float(number) for number in re.findall(self.example["losses"], "\n".join(lines))]
        return self._ended(done.returncode), losses

    def _ended(self, code: int) -> str:
        try:
            record = json.loads((self.folder / "job.json").read_text())
        except (OSError, ValueError):
            return f"{code}, no job.json"
        if record["exit_code"] == 0:
            return "completed"
        return f"{record['exit_code']}: {str(record['failure_reason'])[:400]}"


def main(words: Sequence[str]) -> int:
    """Run what *words* ask for; 0 if all examples ended as the list says."""
    options = parser().parse_args(words)
    examples = json.loads(LIST.read_text())["examples"]
    print(*HEAD, sep="\n", flush=True)
    wrong = 0
    for example in examples:
        if options.only and not any(re.fullmatch(pattern, example["name"]) for pattern in options.only):
            continue
        begun_s = time.monotonic()
        row, matched = compared(example, options)
        wrong += not matched
        print(row, flush=True)
        print(f"{example['name']}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/official-examples", description="docs/lab/official-examples.md")
    parser.add_argument(
        "--checkout", type=Path, required=True, metavar="DIR", help="a clone of aws/amazon-sagemaker-examples"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of these names alone (regular expressions)")
    parser.add_argument(
        "--jobs", type=Path, default=Path("jobs/examples"), metavar="FOLDER", help="default jobs/examples"
    )
    parser.add_argument("--beds", type=Path, default=Path(".beds"), metavar="FOLDER", help=".beds")
    return parser


def compared(example: dict[str, Any], options: argparse.Namespace) -> tuple[str, bool]:
    """Return *example*'s row of the table, and whether both of its sides ended well."""
    folder = options.jobs.absolute() / example["name"]
    shutil.rmtree(folder, ignore_errors=True)
    source = unpacked(example, options.checkout, folder / "source")
    data.KINDS[example["data"]](folder / "channels")
    python = options.beds.absolute() / example.get("bed", "examples") / "bin/python"

    def run(name: str, ranks: int, changes: dict[str, Any], checkpoints: Path) -> tuple[str, list[float]]:
        checkpoints.mkdir(parents=True, exist_ok=True)
        job = Job(example, folder / name, ranks=ranks, changes=changes)
        return job.run(python, source, folder / "channels", checkpoints)

    saved = folder / "kept"
    status, losses = run("ranks", example["ranks"], example.get("saving", {}), saved)
    if "resuming" in example and status == "completed":
        status, more = run("resumed", example["ranks"], example["resuming"], saved)
        status, losses = f"{status}, resumed", losses + more
    alone_ended, alone = run("alone", 1, example.get("alone", {}), folder / "kept-alone")
    pairs = list(zip(losses, alone, strict=False))
    difference = f"{max(abs(left - right) for left, right in pairs):.1e}" if pairs else "none"
    cells = (
        example["name"],
        f"{example['ranks']}: {', '.join(example.get('how', []))}",
        ", ".join(
            [*example.get("stand_ins", []), *(f"{name}={value}" for name, value in example.get("env", {}).items())]
        )
        or "none",
        status,
        short(losses),
        short(alone) if alone_ended == "completed" else alone_ended,
        difference if len(losses) == len(alone) else f"{difference} ({len(losses)} and {len(alone)} losses)",
    )
    row = "| " + " | ".join(str(cell).replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"
    return row, status.startswith("completed") and alone_ended == "completed"


def short(losses: Sequence[float]) -> str:
    """Return the first and the last of *losses*."""
    return " ".join(f"{loss:.5f}" for loss in (losses if len(losses) < 4 else (losses[0], losses[1], losses[-1])))


def unpacked(example: dict[str, Any], checkout: Path, folder: Path) -> Path:
    """Write the files of *example* from *checkout* below *folder*.

    Raises:
        SystemExit: the checkout lacks the commit, or a file is not the one of the list.
    """
    for name, digest in example["files"].items():
        source = f"{example['commit']}:{example['folder']}/{name}"
        words = ("git", "-C", str(checkout), "show", source)
        completed = subprocess.run(words, capture_output=True)
        if completed.returncode:
            sys.exit(
                f"{source}: {completed.stderr.decode().strip()}; expected a clone with its whole history in {checkout}"
            )
        if hashlib.sha256(completed.stdout).hexdigest() != digest:
            sys.exit(f"{source}: expected SHA-256 {digest}, found another file")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(completed.stdout)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
