"""Measure what the system monitor costs: CPU of its own part with 64 cores and 8 ranks, its memory, the kernel's part.

    scripts/bench monitor [--cores N] [--ranks N] [--loaders N] [--samples N]

The first table is from generated text of /proc and /sys/fs/cgroup in files, which change from sample to sample: each
sample is parsed, written as the monitor writes it (with the Debugger's files, too) and given to the rules. CPU is that
of the whole process less that of a run without samples, so the reading of plain files is in it. The second is from this
machine's own files, where the kernel makes the text: its part is system time.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import parser, peak_mib, print_machine, print_table

INTERVAL_S = 0.5


def stat(ticks: list[list[int]]) -> str:
    """Return /proc/stat after another half second of random use."""
    for row in ticks:
        used = random.randint(0, 50)
        row[0] += used
        row[3] += 50 - used
    whole = [sum(row[at] for row in ticks) for at in range(10)]
    rows = [f"cpu  {' '.join(map(str, whole))}", *(f"cpu{n} {' '.join(map(str, row))}" for n, row in enumerate(ticks))]
    return "\n".join([*rows, "intr " + " ".join(["12345"] * 2000), "ctxt 1", "softirq 1 2 3", ""])


def generate(root: Path, ranks: int, loaders: int) -> None:
    """Write everything but /proc/stat."""
    psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234567\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=123456\n"
    disks = "\n".join(f" 259 {n} nvme{n}n1 100 0 {n}00 0 100 0 {n}00 0 0 0 0 0 0 0 0 0 0" for n in range(10))
    nets = "\n".join(f"  eth{n}: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0" for n in range(8))
    events = "\n".join(f"counter_{n} 123456" for n in range(40))
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/meminfo": "MemTotal: 1000000000 kB\nMemAvailable: 500000000 kB\n" + "Other: 1 kB\n" * 50,
        "proc/diskstats": disks,
        "proc/net/dev": f"Inter-|\n face |\n{nets}\n",
        "sys/fs/cgroup/memory.current": "500000000000\n",
        "sys/fs/cgroup/memory.max": "800000000000\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\n{events}\ninactive_file 60000\nactive_file 40000\n",
        "sys/fs/cgroup/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "sys/fs/cgroup/cpu.max": "3200000 100000\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 1000000\nnr_periods 100\nnr_throttled 10\n",
        **{f"sys/fs/cgroup/{kind}.pressure": psi for kind in ("cpu", "memory", "io")},
        **{f"sys/block/nvme{n}n1/size": "1" for n in range(10)},
    }
    for rank in range(ranks):
        pid = 1000 + rank
        children = [2000 + rank * 100 + number for number in range(loaders)]
        files[f"proc/{pid}/task/{pid}/children"] = " ".join(map(str, children))
        for task, name in ((pid, "python"), *((child, "pt_data_worker") for child in children)):
            files[f"proc/{task}/stat"] = f"{task} ({name}) R 1 " + " ".join(str(n) for n in range(5, 53))
            files[f"proc/{task}/statm"] = "1000 500 300 1 0 200 0"
            files[f"proc/{task}/cmdline"] = "python\0train.py"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def measure(words: argparse.Namespace, folder: Path, root: str) -> tuple[float, float]:
    """Take the samples; return the CPU seconds of the monitor's own part and of the kernel's, without preparations."""
    from toolkit.diagnosis.evidence import MachineFacts
    from toolkit.job.monitor import DebuggerFiles
    from toolkit.monitor.cost import Cost
    from toolkit.monitor.outputs import Outputs
    from toolkit.monitor.rules import Rules
    from toolkit.monitor.sampler import Sampler
    from toolkit.monitor.sources.cpu import Cpu
    from toolkit.monitor.sources.memory import MemorySource
    from toolkit.monitor.sources.pressure import Pressure
    from toolkit.monitor.sources.quota import Quota
    from toolkit.monitor.sources.ranks import Ranks
    from toolkit.monitor.sources.traffic import Traffic

    made = root != "/"
    ticks = [[1000] * 10 for _ in range(words.cores)]
    if made:
        (folder / "root/proc/stat").write_text(stat(ticks))
    ranks = Ranks(root)
    sampler = Sampler(
        [Cpu(root), MemorySource(root), Quota(root, 0.0), Pressure(root, 0.0), Traffic(root, folder, 0.0), ranks],
        Cost(INTERVAL_S),
    )
    for rank in range(words.ranks if made else 1):
        ranks.add(rank, 1000 + rank if made else os.getpid(), 0.0)
    sampler.sample(INTERVAL_S)
    outputs = Outputs(
        folder / "out",
        sampler.columns,
        print,
        host="algo-1",
        debugger_files=DebuggerFiles(folder=folder / "profiler") if words.debugger else None,
    )
    rules = Rules(
        (),
        sampler.columns,
        host="algo-1",
        start_s=0.0,
        interval_s=INTERVAL_S,
        machine=MachineFacts(cores=words.cores),
        note=lambda _: None,
    )
    own_s = kernel_s = 0.0
    for number in range(2, words.samples + 2):
        if made:
            (folder / "root/proc/stat").write_text(stat(ticks))
        now_s = number * INTERVAL_S
        before = resource.getrusage(resource.RUSAGE_SELF)
        row = sampler.sample(now_s)
        outputs.sample(now_s, sampler.columns, row)
        rules.sample(now_s, sampler.columns, row)
        if number % 2 == 0:
            for finding in rules.run_due(now_s):
                outputs.finding(finding)
        after = resource.getrusage(resource.RUSAGE_SELF)
        own_s += after.ru_utime - before.ru_utime
        kernel_s += after.ru_stime - before.ru_stime
    outputs.close()
    print(f"  {len(sampler.columns)} columns", file=sys.stderr)
    return own_s, kernel_s


def memory_mib() -> float:
    """Return the memory of a monitor that has run for some seconds on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {
            "monitor": {"interval_s": 0.1},
            "host": "algo-1",
            "attempt": 1,
            "output": str(folder / "output"),
            "ranks": str(folder / "ranks"),
            "status": str(folder),
            "cores": os.cpu_count(),
        }
        (folder / "config.json").write_text(json.dumps(config))
        process = subprocess.Popen([sys.executable, "-I", "-m", "toolkit.monitor", str(folder / "config.json")])
        time.sleep(5)
        peak = peak_mib(process.pid)
        process.terminate()
        process.wait()
        return peak


def row(what: str, words: argparse.Namespace, root: str, folder: Path) -> tuple[str, ...]:
    """Return a line of the table: microseconds a sample, and percent of a core with a sample each INTERVAL_S."""
    cells = []
    for seconds in measure(words, folder, root):
        each_s = seconds / words.samples
        cells.append(f"{1e6 * each_s:,.0f} us, {100 * each_s / INTERVAL_S:.2f} %")
    return what, *cells


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--cores", type=int, default=64)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--loaders", type=int, default=8, help="loader workers of each rank (default 8)")
    options.add_argument("--samples", type=int, default=1200)
    options.add_argument("--debugger", action="store_true", help="write the Debugger's files, too")
    words = options.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as generated, tempfile.TemporaryDirectory() as real:
        generate(Path(generated) / "root", words.ranks, words.loaders)
        title = f"{words.cores} cores, {words.ranks} ranks with {words.loaders} loader workers each, generated"
        rows = (
            row(title, words, str(Path(generated) / "root"), Path(generated)),
            row(f"this machine, {os.cpu_count()} cores, 1 rank", words, "/", Path(real)),
        )
        print_table((f"a sample, % of a core with one each {INTERVAL_S} s", "own part", "the kernel's part"), rows)
    print(f"\nmemory of the process: {memory_mib():.1f} MiB")


if __name__ == "__main__":
    main()
