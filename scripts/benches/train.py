"""Measure `train` beside sagemaker-training 5.1.4: same machine, same jobs, one after the other; the ratio stands last.

    scripts/bench start|relay|stop|all [--runs N] [--lines N] [--ranks 1,8] [--matching 0,1,100] [--ours-only]

start   CPU and wall time from exec of `train` to the script's first instruction, less a bare interpreter's. CPU: of all
        processes that there are by then.
relay   lines of 70 bytes through `train`, with the seven metric definitions of a Hugging Face GPT-2 job; CPU of the
        launcher's own processes (not of the ranks, not of torchrun) and the memory of `train` (VmHWM).
stop    SIGTERM to `train` until the script's handler runs; the last rank's exit until `train`'s.

The predecessor goes into a venv of its own under .cache/ (its install builds a C extension: a compiler and Python's
headers are needed). It has no metrics, so what it is compared with does more. It relays only for framework toolkits,
which call it with capture_error on; a plug-in of three lines stands for one. Several ranks are started by a launcher
that imitates torchrun, without torch, the same for both. Needs Linux; best on a machine that does nothing else.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import ROOT, environment, in_turns, numbers, parser, peak_mib, print_machine, print_table

VERSION = "5.1.4"
OURS = Path(os.environ.get("BENCH_VENV", ROOT / ".venv")) / "bin"
NOISE = b"INFO step 1234 of 99999: tokens read from shard 17, all is well here.\n"
MATCH = b"{'loss': 0.6931, 'learning_rate': 4.5e-05, 'epoch': 0.33}  and so on.\n"
METRICS = (
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
    "train_loss",
    "epoch",
    "loss",
    "learning_rate",
)
assert len(NOISE) == len(MATCH) == 70

FIRST = """
import time
wall, own = time.monotonic_ns(), time.process_time_ns()
import os, sys
def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
def tree():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = parent(name)
            except OSError:
                pass
    for pid in parents:
        line, at = [], pid
        while at in parents and at not in line:
            line.append(at)
            at = parents[at]
            if at == int(os.environ["BENCH_PID"]):
                yield pid
def spent(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    with open(f"/proc/{pid}/stat") as file:  # Children that have ended: pip, nvidia-smi, ... In ticks.
        fields = file.read().rpartition(")")[2].split()
    return total + (int(fields[13]) + int(fields[14])) * 10**9 // os.sysconf("SC_CLK_TCK")
others = 0
for pid in tree():
    try:
        others += spent(pid) if pid != os.getpid() else 0
    except OSError:
        pass
with open(os.environ["BENCH_OUT"], "w") as file:
    print(wall, own + others, file=file)
"""

WRITES = """
import os
block = open(os.environ["BENCH_BLOCK"], "rb").read()
lines = block.count(b"\\n")
left = int(os.environ["BENCH_LINES"]) // int(os.environ.get("WORLD_SIZE", "1"))
while left > 0:
    piece = memoryview(block if left >= lines else block[: left * 70])
    left -= lines
    while piece:
        piece = piece[os.write(1, piece) :]
"""

STOPS = """
import os, signal, sys, time
out = os.environ["BENCH_OUT"] + "." + os.environ.get("RANK", "0")
def note(name, stamp):
    with open(out + ".tmp", "w") as file:
        file.write(str(stamp))
    os.rename(out + ".tmp", out + name)
def stop(number, frame):
    stamp = time.monotonic_ns()
    note(".handled", stamp)
signal.signal(signal.SIGTERM, stop)
note(".ready", 0)
signal.pause()
note(".last", time.monotonic_ns())
os._exit(0)
"""

EXITS = """
import os, time
path = os.environ["BENCH_OUT"] + "." + os.environ.get("RANK", "0") + ".last"
print("done", flush=True)
stamp = time.monotonic_ns()
with open(path, "w") as file:
    file.write(str(stamp))
os._exit(0)
"""

# What a framework toolkit does; see "Several ranks" and "capture_error" above.
PLUGIN = """
from sagemaker_training import entry_point, environment, runner
def main():
    env = environment.Environment()
    kind = runner.TorchDistributedRunnerType if env.additional_framework_parameters.get(
        "sagemaker_torch_distributed_enabled") else runner.ProcessRunnerType
    entry_point.run(uri=env.module_dir, user_entry_point=env.user_entry_point, args=env.to_cmd_args(),
                    env_vars=env.to_env_vars(), capture_error=True, runner_type=kind)
"""

TORCHRUN = """
import os, signal, subprocess, sys
words = sys.argv[1:]
count, at = 1, 0
while words[at].startswith("--"):
    if words[at] == "--":
        at += 1
        break
    if words[at] == "--nproc_per_node":
        count = int(words[at + 1])
    at += 2
python = os.environ.get("PYTHON_EXEC", sys.executable)
ranks = [
    subprocess.Popen([python, "-u", *words[at:]],
                     env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(count)})
    for r in range(count)
]
signal.signal(signal.SIGTERM, lambda number, frame: [rank.terminate() for rank in ranks])
sys.exit(max(rank.wait() for rank in ranks))
"""


class Side:
    """One of the two: how its `train` is started."""

    def __init__(self, name: str, programs: Path) -> None:
        self.name = name
        self.python = programs / "python"
        self.train = programs / "train"
        self.is_ours = name == "ours"


class Job:
    """A base folder with the documents and the code of a job, and the environment `train` is given."""

    def __init__(
        self, folder: Path, side: Side, script: str, ranks: int, captured: bool, environ: dict[str, str]
    ) -> None:
        config, code = folder / "input/config", folder / "code"
        for path in (config, code, folder / "output", folder / "model", folder / "extra/torch/distributed"):
            path.mkdir(parents=True)
        code.joinpath("script.py").write_text(script)
        hyperparameters = {"sagemaker_program": "script.py", "sagemaker_submit_directory": str(code)}
        if ranks > 1:
            hyperparameters["sagemaker_torch_distributed_enabled"] = "true"
            hyperparameters["sagemaker_instance_type"] = "local"
        self._write(config / "hyperparameters.json", hyperparameters)
        self._write(config / "inputdataconfig.json", {})
        self._write(
            config / "resourceconfig.json",
            {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo"},
        )
        definitions = [{"Name": name, "Regex": f"'{name}': ([0-9.]*)"} for name in METRICS if captured]
        self._write(config / "metric-definition-regex.json", definitions)
        self._imitate(folder / "extra", side)
        self.folder = folder
        self.out = folder / "out"
        self.train = str(side.train)
        self.environ = {
            "PATH": f"{folder / 'extra'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(folder),
            "SAGEMAKER_BASE_DIR": str(folder),
            "PYTHONPATH": str(folder / "extra"),
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "TOOLKIT_PROCESSES_PER_HOST": str(ranks),
            "SM_HP_MP_PARAMETERS": "",
            "BENCH_OUT": str(self.out),
            "BENCH_PID": str(os.getpid()),
            **environ,
        }
        if not side.is_ours:
            # It takes the number of processes from the devices it sees; a CPU-only machine has none, so it is told.
            self.environ["BENCH_RANKS"] = str(ranks)
            if captured or ranks > 1:
                self.environ["SAGEMAKER_TRAINING_MODULE"] = "bench_plugin:main"

    @staticmethod
    def _write(path: Path, document: object) -> None:
        path.write_text(json.dumps(document))

    @staticmethod
    def _imitate(extra: Path, side: Side) -> None:
        extra.joinpath("bench_plugin.py").write_text(PLUGIN)
        for folder in (extra / "torch", extra / "torch/distributed"):
            folder.joinpath("__init__.py").touch()
        extra.joinpath("torch/distributed/run.py").write_text(TORCHRUN)
        command = extra / "torchrun"
        ranks = '--nproc_per_node "${BENCH_RANKS:-1}"'
        command.write_text(f'#!/bin/sh\nshift 4\nexec {side.python} -m torch.distributed.run --nnodes 1 {ranks} "$@"\n')
        command.chmod(0o755)


def begin(job: Job, stdout: int | None = None) -> tuple[subprocess.Popen[bytes], int]:
    """Start `train`; return it and the moment of its exec, ns."""
    with (job.folder / "stderr.log").open("wb") as log:
        target = subprocess.DEVNULL if stdout is None else stdout
        begun = time.monotonic_ns()
        process = subprocess.Popen([job.train], env=job.environ, stdout=target, stderr=log, stdin=subprocess.DEVNULL)
    return process, begun


def check(job: Job, status: int) -> None:
    if status != 0:
        sys.stderr.write((job.folder / "stderr.log").read_text(errors="replace")[-2000:])
        raise SystemExit(f"bench: {job.train} ended with {status}")


def bare(folder: Path, python: Path) -> tuple[float, float]:
    """Return (CPU, wall) in ms of a bare interpreter up to the script's first instruction."""
    script = folder / "first.py"
    script.write_text(FIRST)
    environ = {"PATH": os.defpath, "BENCH_OUT": str(folder / "out"), "BENCH_PID": str(os.getpid())}
    begun = time.monotonic_ns()
    subprocess.run([python, script], env=environ, check=True)
    wall, cpu = map(int, (folder / "out").read_text().split())
    return cpu / 1e6, (wall - begun) / 1e6


Row = tuple[str, ...]


def start(sides: list[Side], words: argparse.Namespace) -> Iterator[Row]:
    def started(side: Side) -> tuple[float, ...]:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            base = bare(Path(name), side.python)
            job = Job(Path(name) / "ml", side, FIRST, 1, False, {})
            process, begun = begin(job)
            check(job, process.wait())
            wall, cpu = map(int, job.out.read_text().split())
        return *base, cpu / 1e6, (wall - begun) / 1e6

    # The first one warms the page cache and writes .pyc files.
    runs = in_turns({side.name: lambda side=side: started(side) for side in sides}, words.runs, warm_up=1)
    medians = {name: [statistics.median(times) for times in zip(*its, strict=True)] for name, its in runs.items()}
    for place, kind in enumerate(("CPU", "wall")):
        over_bare = {name: median[place + 2] - median[place] for name, median in medians.items()}
        yield row(f"start, {kind} over a bare interpreter", "ms", over_bare, lower_is_better=True)


def relay(sides: list[Side], words: argparse.Namespace) -> Iterator[Row]:
    for ranks in words.ranks:
        for matching in words.matching:
            cpu, memory, rate = {}, {}, {}
            for side in sides:
                runs = [relayed(side, words.lines, ranks, matching) for _ in range(words.repeat)]
                spent, peak, wall = min(runs)
                cpu[side.name], memory[side.name] = spent, peak
                rate[side.name] = words.lines / spent / 1e6 if spent else float("inf")
                print(f"  {side.name}: {spent:.2f} s CPU, {wall:.2f} s wall", file=sys.stderr)
            what = f"relay, {ranks} rank{'s' * (ranks > 1)}, {matching} % match"
            yield row(what, "M lines/CPU-s", rate, lower_is_better=False)
            yield row(f"{what}: peak memory", "MiB", memory, lower_is_better=True)


def relayed(side: Side, lines: int, ranks: int, matching: int) -> tuple[float, float, float]:
    """Return (CPU s, peak MiB of train, wall s) of relaying *lines* in all."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        block = Path(name) / "block"
        block.write_bytes((MATCH * matching + NOISE * (100 - matching)) * 10)
        environ = {"BENCH_BLOCK": str(block), "BENCH_LINES": str(lines)}
        job = Job(Path(name) / "ml", side, WRITES, ranks, True, environ)
        reader = subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdin is not None
        process, begun = begin(job, reader.stdin.fileno())
        reader.stdin.close()
        reader.stdin = None
        helpers: dict[int, int] = {}
        peak = 0.0
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            peak = max(peak, peak_mib(process.pid))
            helpers.update(own_helpers(process.pid, job.train))
            time.sleep(0.02)
        wall = time.monotonic_ns() - begun
        spent = ticks(process.pid) / os.sysconf("SC_CLK_TCK") + sum(helpers.values()) / 1e9
        check(job, process.wait())
        out, _ = reader.communicate()
    if not lines // ranks * ranks <= int(out) <= lines // ranks * ranks + 100:
        print(f"  {side.name}: {lines:,} lines went in, {int(out):,} came out", file=sys.stderr)
    return spent, peak, wall / 1e9


def ticks(pid: int) -> int:
    """Return the CPU ticks of a process alone, ended but not yet waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def own_helpers(train: int, command: str) -> dict[int, int]:
    """Return {pid: CPU ns} of the launcher's other processes: its forks, and what stands in for ranks."""
    cpu_ns = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == train:
            continue
        try:
            argv = path.joinpath("cmdline").read_bytes().split(b"\0")
            if command.encode() in argv or any(word.endswith(b"rank_shim.py") for word in argv):
                cpu_ns[int(path.name)] = int(path.joinpath("schedstat").read_text().split()[0])
        except OSError:
            continue
    return cpu_ns


def stop(sides: list[Side], words: argparse.Namespace) -> Iterator[Row]:
    for ranks in words.ranks:
        ways = {
            side.name: lambda side=side, ranks=ranks: (stopped(side, ranks), after_the_end(side, ranks))
            for side in sides
        }
        runs = in_turns(ways, max(words.runs // 2, 1))
        handled = {name: [reached for reached, _ in its if reached is not None] for name, its in runs.items()}
        median = {name: statistics.median(times) if times else float("nan") for name, times in handled.items()}
        several = f", {ranks} rank{'s' * (ranks > 1)}"
        yield row(f"stop{several}: SIGTERM until the script's handler", "ms", median, lower_is_better=True)
        median = {name: statistics.median(ended for _, ended in its) for name, its in runs.items()}
        yield row(f"end{several}: last rank's exit until train's", "ms", median, lower_is_better=True)


def stopped(side: Side, ranks: int) -> float | None:
    """Return ms from SIGTERM to `train` until the last rank's handler runs; None if it does not within 3 s."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        job = Job(Path(name) / "ml", side, STOPS, ranks, True, {})
        process, _ = begin(job)
        marks = [Path(f"{job.out}.{rank}") for rank in range(ranks)]
        if not seen(marks, ".ready", 60):
            process.kill()
            raise SystemExit(f"bench: {side.name}: the script did not start; see {job.folder}")
        sent = time.monotonic_ns()
        process.send_signal(signal.SIGTERM)
        reached = seen(marks, ".handled", 3)
        stamps = [int(Path(f"{mark}.handled").read_text()) for mark in marks] if reached else []
        if not reached:
            left_behind(job)
        process.wait()
    return (max(stamps) - sent) / 1e6 if stamps else None


def after_the_end(side: Side, ranks: int) -> float:
    """Return ms from the last rank's last instruction until `train` is gone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        job = Job(Path(name) / "ml", side, EXITS, ranks, True, {})
        process, _ = begin(job)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        gone = time.monotonic_ns()
        check(job, process.wait())
        return (gone - max(int(Path(f"{job.out}.{rank}.last").read_text()) for rank in range(ranks))) / 1e6


def seen(marks: list[Path], suffix: str, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not all(Path(f"{mark}{suffix}").exists() for mark in marks):
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def left_behind(job: Job) -> None:
    """Kill what still runs this job's script."""
    for path in Path("/proc").iterdir():
        try:
            mine = path.name.isdigit() and str(job.out).encode() in path.joinpath("environ").read_bytes()
            if mine and int(path.name) != os.getpid():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


def row(what: str, unit: str, figures: dict[str, float], *, lower_is_better: bool) -> Row:
    """Return a line of the table: ours, theirs, and how many times better ours is."""
    ours, theirs = figures["ours"], figures.get("theirs")
    cells = what, f"{ours:,.2f} {unit}"
    if theirs is None:
        return *cells, "-", ""
    if theirs != theirs:
        return *cells, "never", ""
    return *cells, f"{theirs:,.2f} {unit}", f"{theirs / ours if lower_is_better else ours / theirs:,.1f}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("what", choices=("start", "relay", "stop", "all"))
    options.add_argument("--runs", type=int, default=15, help="starts to take the median of (default 15)")
    options.add_argument("--repeat", type=int, default=1, help="relays to take the best of (default 1)")
    options.add_argument("--lines", type=int, default=2_000_000)
    options.add_argument("--ranks", type=numbers, default=[1, 8], metavar="N,...")
    options.add_argument("--matching", type=numbers, default=[0, 1, 100], metavar="PERCENT,...")
    options.add_argument("--ours-only", action="store_true")
    words = options.parse_args()
    sides = [Side("ours", OURS)]
    if not sides[0].train.exists():
        raise SystemExit("bench: no .venv/bin/train; run scripts/setup first")
    if not words.ours_only:
        install = ["setuptools", "wheel", f"sagemaker-training=={VERSION}"]
        theirs = environment(f"sagemaker-training-{VERSION}", install)
        if theirs is None:
            print("bench: that failed (it needs a C compiler and Python's headers); ours only", file=sys.stderr)
        else:
            sides.append(Side("theirs", theirs))
    print_machine()
    parts = {"start": start, "relay": relay, "stop": stop}
    chosen = [part for name, part in parts.items() if words.what in (name, "all")]
    print_table(("", "ours", "theirs", "ratio"), (line for part in chosen for line in part(sides, words)))


if __name__ == "__main__":
    main()
