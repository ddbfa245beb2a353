"""scripts/clients: real training libraries under every launcher, as a table (docs/frameworks.md).

Each job is one of tests/programs/clients under `toolkit run`, on hosts that are processes of this machine, two ranks on
each. Run it with the interpreter that has the libraries.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/programs/clients"
CLIENTS = ("ddp", "trainer", "accelerated", "lit", "deep")
LAUNCHERS = {"plain": "none", "torchrun": "torchrun", "mpi": "mpi", "smddp": "smddp"}
MODES = ("end", "fail", "stop")
# Where SM_TRAINING_ENV is set, DeepSpeed takes every script that torchrun did not start for a rank under Open MPI.
LEFT_OUT = {("deep", "plain")}
PER_HOST = 2
# transformers takes each rank of the library to have a GPU.
WITHOUT_NAMES = {("trainer", "smddp")}
LOSS = 0.44681  # What one process comes to: tests/programs/clients/task.py.
CAUSE = "ValueError: a bad batch"
DEADLINE_S = 180
HEAD = ("| script | launcher | hosts | mode | right | seconds |", "|---|---|---|---|---|---|")


class Job:
    """One job of the matrix, and what is right for it."""

    def __init__(self, client: str, launcher: str, hosts: int, mode: str, folder: Path) -> None:
        self.client, self.launcher, self.hosts, self.mode = client, launcher, hosts, mode
        self.folder = folder / f"{client}-{launcher}-{hosts}-{mode}"
        # Without a launcher each host trains alone, but for Lightning, which starts ranks itself.
        self.alone = launcher == "plain" and client != "lit"
        self.ranks = PER_HOST * hosts

    def command(self) -> list[str]:
        words = {"mode": self.mode, "hosts": self.hosts, "devices": PER_HOST}
        return [
            sys.executable,
            "-m",
            "toolkit",
            "run",
            str(PROGRAMS / f"{self.client}.py"),
            "--plain",
            "--replace",
            "--hosts",
            str(self.hosts),
            "--distribution",
            LAUNCHERS[self.launcher],
            "--job-dir",
            str(self.folder),
            *(("--env", "TOOLKIT_COMPAT=off") if (self.client, self.launcher) in WITHOUT_NAMES else ()),
            *(() if self.launcher == "plain" else ("--processes-per-host", str(PER_HOST))),
            *itertools.chain.from_iterable(("--hyperparameter", f"{name}={value}") for name, value in words.items()),
        ]

    def faults(self, output: str) -> list[str]:
        """Return what is wrong with what the job left."""
        try:
            facts = json.loads((self.folder / "job.json").read_text())
        except (OSError, ValueError):
            return [f"no job.json: {output[-200:]}"]
        end = (facts["status"], facts["exit_code"])
        expected = {"end": ("Completed", 0), "fail": ("Failed", 1), "stop": ("Stopped", 143)}[self.mode]
        wrong = [f"{end[0]}, {end[1]}"] if end != expected else []
        if self.mode == "end":
            return wrong + self._wrong_result(output)
        if self.mode == "fail":
            return wrong + self._wrong_cause(facts["failure_reason"])
        saved = any(path.is_file() for path in self.folder.glob("hosts/*/opt/ml/checkpoints/**/*"))
        killed = re.search(r"SIGKILL \(signal 9\)", output)
        return [*wrong, *([] if saved else ["nothing was saved"]), *(["a rank was killed"] if killed else [])]

    def _wrong_result(self, output: str) -> list[str]:
        ranks: list[dict[str, Any]] = [json.loads(line) for line in re.findall(r"client (\{.*\})", output)]
        wrong = []
        places = sorted((rank["rank"], rank["world"], rank["local"]) for rank in ranks)
        expected = [(rank, self.ranks, rank % PER_HOST) for rank in range(self.ranks)]
        if places != ([(0, 1, 0)] * self.hosts if self.alone else expected):
            wrong.append(f"(rank, world, local rank): {places}")
        nodes = sorted((rank["rank"], rank["node"]) for rank in ranks if rank["node"] >= 0)
        hosts = {(rank // PER_HOST, node) for rank, node in nodes}
        # Lightning under MPI numbers hosts by their names' order, and here the leader has the machine's.
        ordered = self.launcher == "mpi" or all(host == node for host, node in hosts)
        if not ordered or len(hosts) > self.hosts or len({node for _, node in hosts}) < len(hosts):
            wrong.append(f"(rank, node): {nodes}")
        losses = {rank["loss"] for rank in ranks}
        if any(abs(loss - LOSS) > 2e-5 for loss in losses):
            wrong.append(f"losses {losses}, expected {LOSS}")
        savers = {path.parts[-5] for path in self.folder.glob("hosts/*/opt/ml/model/model*")}
        if len(savers) != (self.hosts if self.alone else 1):
            wrong.append(f"saved by {sorted(savers)}")
        return wrong

    def _wrong_cause(self, reason: str) -> list[str]:
        host, rank = (1, 0) if self.alone else (self.hosts, self.ranks - 1)
        expected = f"host algo-{host}, rank {rank}"
        if self.launcher == "plain":
            expected = f"host algo-{host}" if self.client == "lit" else "host algo-"
        wrong = [] if CAUSE in reason else [f"cause {reason[:200]!r}"]
        return wrong if expected in reason else [*wrong, f"expected {expected!r} in {reason[:300]!r}"]


def main(words: Sequence[str]) -> int:
    """Run what *words* ask for; 0 if everything was right."""
    options = parser().parse_args(words)
    wrong = 0
    print(*HEAD, sep="\n")
    for client, launcher, hosts, mode in itertools.product(
        options.clients, options.launchers, options.hosts, options.modes
    ):
        if (client, launcher) in LEFT_OUT:
            continue
        job = Job(client, launcher, hosts, mode, options.jobs)
        begun_s = time.monotonic()
        faults = job.faults(ran(job))
        wrong += bool(faults)
        right = "; ".join(faults).replace("\n", " ").replace("|", "\\|") or "yes"
        print(f"| {client} | {launcher} | {hosts} | {mode} | {right} | {time.monotonic() - begun_s:.0f} |", flush=True)
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/clients", description="Real libraries; docs/frameworks.md.")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS, metavar="NAME")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=LAUNCHERS, metavar="NAME")
    parser.add_argument("--hosts", nargs="+", type=int, default=(1, 2), metavar="N")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    parser.add_argument(
        "--jobs", type=Path, default=Path("jobs/clients"), metavar="FOLDER", help="default jobs/clients"
    )
    return parser


def ran(job: Job) -> str:
    """Run *job*, stop it once all its ranks train where that is its mode, and return what it printed."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    lines = []
    with started(job.command(), environ) as process, deadline(process):
        assert process.stdout is not None
        under_way = 0
        for line in process.stdout:
            lines.append(line)
            under_way += "under way" in line
            if "under way" in line and under_way == (job.hosts if job.alone else job.ranks):
                process.send_signal(signal.SIGTERM)
    output = "".join(lines)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "output.txt").write_text(output)
    return output


@contextlib.contextmanager
def started(command: list[str], environ: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        yield process
    finally:
        process.wait()


@contextlib.contextmanager
def deadline(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Have the job killed where it takes too long."""

    def kill(*_: object) -> None:
        process.send_signal(signal.SIGINT)
        time.sleep(1)  # A second one at once would be the same request.
        process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, kill)
    signal.alarm(DEADLINE_S)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
