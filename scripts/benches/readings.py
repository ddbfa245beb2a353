"""Compare the CPU time of what the monitor and the commands read of processes and machines with psutil's.

    scripts/bench readings [--cores 64] [--ranks 64] [--rounds 200]

Each reading is taken by the toolkit's reader and by psutil in turns: the same figure, of the same kernel's files. The
cores are lines of a made-up /proc/stat, the ranks real processes that sleep. The last line says what a sample of that
machine costs by each, at two samples a second, without the readings that are taken more seldom (children, pages) and
without those that psutil does not have.
"""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from harness import parser, print_machine, print_table

from toolkit.monitor.processes import RunningProcess
from toolkit.monitor.sources.cpu import Cpu
from toolkit.monitor.sources.memory import meminfo
from toolkit.monitor.sources.traffic import disk_bytes, network_bytes, whole_disks
from toolkit.train.supervise.kernel import descendants, find_marked

SAMPLES_PER_S = 2
Reading = Callable[[], object]


def measure_us(reading: Reading, rounds: int) -> float:
    """Return the CPU time of one *reading*."""
    began_s = time.process_time()
    for _ in range(rounds):
        reading()
    return (time.process_time() - began_s) / rounds * 1e6


def make_root(folder: Path, cores: int) -> Path:
    """Make a root whose /proc/stat has *cores* cores."""
    lines = Path("/proc/stat").read_text().splitlines()
    core = next(line for line in lines if line.startswith("cpu0")).partition(" ")[2]
    others = [line for line in lines if not line.startswith("cpu")]
    (folder / "proc").mkdir()
    stat = [lines[0], *(f"cpu{number} {core}" for number in range(cores)), *others]
    (folder / "proc/stat").write_text("\n".join(stat) + "\n")
    return folder


def read_cores_by_psutil(root: Path) -> Reading:
    def read() -> object:
        psutil.PROCFS_PATH = f"{root}/proc"
        try:
            return psutil.cpu_times(), psutil.cpu_times(percpu=True)
        finally:
            psutil.PROCFS_PATH = "/proc"

    return read


def read_rank_by_psutil(process: psutil.Process) -> Reading:
    def read() -> object:
        with process.oneshot():
            return process.cpu_times(), process.memory_info(), process.num_threads(), process.status()

    return read


def pairs(root: Path, pid: int) -> dict[str, tuple[int, Reading, Reading]]:
    """Return for each reading what a sample takes (1: one for each rank, 0: one, -1: none), and both readers."""
    cpu, disks = Cpu(str(root)), whole_disks(Path("/"))
    ours, theirs = RunningProcess(pid), psutil.Process(pid)
    own = psutil.Process()
    return {
        "cores": (0, lambda: cpu.values(0.0), read_cores_by_psutil(root)),
        "memory of the machine": (0, lambda: meminfo(Path("/proc/meminfo").read_bytes()), psutil.virtual_memory),
        "disks": (0, lambda: disk_bytes(Path("/proc/diskstats").read_bytes(), disks), psutil.disk_io_counters),
        "network": (0, lambda: network_bytes(Path("/proc/net/dev").read_bytes()), psutil.net_io_counters),
        "a rank: CPU, memory, threads, state": (1, ours.read, read_rank_by_psutil(theirs)),
        "a rank: its disk traffic": (1, ours.disk_bytes, theirs.io_counters),
        "a rank: its children": (-1, ours.children, theirs.children),
        "a process: its own pages": (-1, ours.private_bytes, theirs.memory_full_info),
        "all processes below one": (-1, lambda: descendants(os.getpid()), lambda: own.children(recursive=True)),
        "processes with a variable": (
            -1,
            lambda: find_marked(b"TOOLKIT_BENCH=1"),
            lambda: [
                process.pid
                for process in psutil.process_iter(["environ"])
                if (process.info["environ"] or {}).get("TOOLKIT_BENCH") == "1"
            ],
        ),
    }


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--cores", type=int, default=64)
    command_line.add_argument("--ranks", type=int, default=64)
    command_line.add_argument("--rounds", type=int, default=200)
    options = command_line.parse_args()
    print_machine(f"psutil {psutil.__version__}", f"{options.cores} cores, {options.ranks} ranks")
    environ = {**os.environ, "TOOLKIT_BENCH": "1"}
    sleepers = [subprocess.Popen(["sleep", "600"], env=environ) for _ in range(options.ranks)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows, sample_us = [], [0.0, 0.0]
            for name, (count, *readers) in pairs(make_root(Path(folder), options.cores), sleepers[0].pid).items():
                rounds = options.rounds if count >= 0 else max(options.rounds // 10, 1)
                turns = [[measure_us(reader, rounds) for reader in readers] for _ in range(5)]
                taken = [statistics.median(column) for column in zip(*turns, strict=True)]
                if count >= 0:
                    sample_us = [
                        sum_us + us * (options.ranks if count else 1)
                        for sum_us, us in zip(sample_us, taken, strict=True)
                    ]
                rows.append((name, *(f"{us:.1f}" for us in taken), f"{taken[1] / taken[0]:.1f}"))
    finally:
        for sleeper in sleepers:
            sleeper.kill()
    print_table(("reading", "toolkit, us", "psutil, us", "times"), rows)
    shares = [us * SAMPLES_PER_S / 1e6 * 100 for us in sample_us]
    print(
        f"\nA sample: {sample_us[0] / 1000:.1f} and {sample_us[1] / 1000:.1f} ms; {shares[0]:.2f} and"
        f" {shares[1]:.2f} % of a core at {SAMPLES_PER_S} samples a second."
    )


if __name__ == "__main__":
    main()
