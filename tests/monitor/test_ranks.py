"""CPU and memory of real processes: a rank and its children."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolkit.monitor import processes
from toolkit.monitor.sources.ranks import Ranks

# A rank with a forked worker, which burns a core under the name that torch gives a loader's workers.
RANK = """
import multiprocessing, sys
def work():
    with open("/proc/self/comm", "w") as comm:
        comm.write("pt_data_worker")
    while True:
        sum(range(10000))
if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work, daemon=True).start()
    print("started", flush=True)
    sys.stdin.read()
"""


# Forks a worker of the loader for each line it gets: it uses 0.3 s of CPU, and ends when the next line comes.
FORKS = """
import os, signal, sys, time
data = bytearray(os.urandom(1 << 10) * (200 << 10))
here, there = os.pipe()
wrote, writes = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.close(there)
        os.read(here, 1)
        for place in range(0, 30 << 20, 4096):
            data[place] ^= 1
        os.write(writes, b"x")
        while os.read(here, 1):
            pass
        os._exit(0)
print("started", flush=True)
for line in sys.stdin:
    os.write(there, b"xxx")
    for _ in range(3):
        os.read(wrote, 1)
    print("wrote", flush=True)
"""


SHORT_LIVED = """
import os, sys, time
print("started", flush=True)
for line in sys.stdin:
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/comm", "w") as comm:
            comm.write("pt_data_worker")
        while time.process_time() < 0.3:
            pass
        print("used", flush=True)
        os.close(there)
        os.read(here, 1)
        os._exit(0)
    os.close(here)
    sys.stdin.readline()
    os.close(there)
    os.waitpid(pid, 0)
    print("ended", flush=True)
"""


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield process
    finally:
        process.communicate()


def tell(process: subprocess.Popen[bytes], answer: bytes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == answer + b"\n"


def sample_by_name(ranks: Ranks, now_s: float | None = None) -> dict[str, float]:
    values = ranks.values(time.monotonic() if now_s is None else now_s)
    return dict(zip([column.name for column in ranks.columns], values, strict=True))


def test_a_loaders_worker_counts_for_its_rank_and_for_the_loader() -> None:
    with running(RANK) as process:
        ranks = Ranks()
        ranks.add(3, process.pid, time.monotonic())
        ends_s = time.monotonic() + 60
        values = first_values = sample_by_name(ranks)
        while not values["rank/3/loader_cpu_percent"] >= 5 and time.monotonic() < ends_s:
            time.sleep(0.05)
            values = sample_by_name(ranks)

        assert all(
            first_values[f"rank/3/{column}"] != first_values[f"rank/3/{column}"]
            for column in ("loader_cpu_percent", "cpu_percent")
        )
        assert values["rank/3/loader_cpu_percent"] >= 5
        assert values["rank/3/cpu_percent"] >= values["rank/3/loader_cpu_percent"]
        assert values["rank/3/loader_workers"] == 1
        assert values["rank/3/memory_bytes"] > 4 << 20
        assert ranks.any_lives()

    assert not ranks.any_lives()
    assert all(value != value for value in sample_by_name(ranks).values())


def test_the_cpu_time_of_workers_that_live_between_two_looks_is_counted_once() -> None:
    with running(SHORT_LIVED) as process:
        ranks = Ranks()
        ranks.add(0, process.pid, 0.0)
        tell(process, b"used")
        while_one_lives = sample_by_name(ranks, 10.0)
        tell(process, b"ended")
        after_it = sample_by_name(ranks, 20.0)
        for _ in range(3):
            tell(process, b"used")
            tell(process, b"ended")
        unseen = sample_by_name(ranks, 30.0)

    # 0.3 s in 10 s are 3 % of a core. A second worker's time would be as much again; forks take some.
    assert while_one_lives["rank/0/loader_cpu_percent"] == pytest.approx(3, abs=1)
    assert (while_one_lives["rank/0/loader_workers"], while_one_lives["rank/0/loader_starts"]) == (1, 1)
    assert after_it["rank/0/loader_cpu_percent"] < 1
    assert after_it["rank/0/cpu_percent"] < 1
    assert unseen["rank/0/loader_cpu_percent"] == pytest.approx(9, abs=2)
    assert unseen["rank/0/cpu_percent"] == pytest.approx(9, abs=2)
    assert (unseen["rank/0/loader_workers"], unseen["rank/0/loader_starts"]) == (0, 1)


def test_pages_that_a_fork_has_from_its_rank_count_once() -> None:
    with running(FORKS) as process:
        ranks = Ranks()
        ranks.add(0, process.pid, 0.0)
        at_first = sample_by_name(ranks, 1.5)
        for number in range(1, 4):
            sample_by_name(ranks, 10.0 * number)
        tell(process, b"wrote")
        for number in range(4, 8):
            after_writing = sample_by_name(ranks, 10.0 * number)

    # 200 MiB of the rank, and each of three children writes to 30 MiB of them; Python and the rest take some.
    assert 200 < at_first["rank/0/memory_bytes"] / 2**20 < 260
    assert 290 < after_writing["rank/0/memory_bytes"] / 2**20 < 350


def test_a_process_that_has_taken_the_pid_is_another_one(tmp_path: Path) -> None:
    stat = tmp_path / "proc/7/stat"
    stat.parent.mkdir(parents=True)
    numbers = [str(number) for number in range(1, 50)]
    stat.write_text(f"7 (python) S {' '.join(numbers)}")
    process = processes.RunningProcess(7, root=str(tmp_path))
    assert process.read() is not None

    numbers[18] = "1" + numbers[18]  # When it started.
    stat.write_text(f"7 (python) S {' '.join(numbers)}")

    assert process.read() is None
    assert process.ended


def test_a_name_with_brackets_and_spaces_is_read_whole() -> None:
    numbers = " ".join(str(number) for number in range(1, 51))
    stat = processes.parse(f"77 (a) b (c) S {numbers}".encode())

    assert stat is not None
    assert (stat.name, stat.state, stat.parent) == (b"a) b (c", b"S", 1)
    assert stat.cpu_s == (11 + 12) / processes.TICKS_PER_S
    assert stat.reaped_s == (13 + 14) / processes.TICKS_PER_S


def test_ancestors_lead_to_the_first_process() -> None:
    with running("print('started', flush=True); import sys; sys.stdin.read()") as process:
        ancestors = processes.ancestors(process.pid)

    assert ancestors[0] == os.getpid()
    assert processes.ancestors(2**31 - 1) == []


# Computes with two threads without the lock of the interpreter, and has three that sleep.
THREADS = """
import hashlib, sys, threading, time
def compute():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 100_000)
for target in (compute, compute, *[lambda: time.sleep(1000)] * 3):
    threading.Thread(target=target, daemon=True).start()
print("started", flush=True)
sys.stdin.read()
"""


def test_threads_that_want_to_run_are_counted() -> None:
    with running(THREADS) as process:
        rank = processes.RunningProcess(process.pid)
        # The thread that said "started" still runs until it waits for its input.
        deadline = time.monotonic() + 30
        while (count := rank.running_threads(64)) != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        stat = rank.read()

        assert stat is not None and stat.threads == 6
        assert count == 2
        assert rank.core_wait_s() >= 0


def test_traffic_of_disks_counts_for_the_rank() -> None:
    with running(RANK) as process:
        rank = processes.RunningProcess(process.pid)
        counted = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())

        assert rank.disk_bytes() == (int(counted["read_bytes"]), int(counted["write_bytes"]))
