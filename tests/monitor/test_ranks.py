"""CPU and memory of real processes: a rank and its children."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


def named(ranks: Ranks, now_s: float | None = None) -> dict[str, float]:
    values = ranks.values(time.monotonic() if now_s is None else now_s)
    return dict(zip([column.name for column in ranks.columns], values, strict=True))


def test_a_loaders_worker_counts_for_its_rank_and_for_the_loader() -> None:
    with running(RANK) as process:
        ranks = Ranks()
        ranks.add(3, process.pid, time.monotonic())
        ends_s = time.monotonic() + 60
        found = before = named(ranks)
        while not found["rank/3/loader_cpu_percent"] >= 5 and time.monotonic() < ends_s:
            time.sleep(0.05)
            found = named(ranks)

        assert all(
            before[f"rank/3/{each}"] != before[f"rank/3/{each}"] for each in ("loader_cpu_percent", "cpu_percent")
        )
        assert found["rank/3/loader_cpu_percent"] >= 5
        assert found["rank/3/cpu_percent"] >= found["rank/3/loader_cpu_percent"]
        assert found["rank/3/loader_workers"] == 1
        assert found["rank/3/memory_bytes"] > 4 << 20
        assert ranks.any_lives()

    assert not ranks.any_lives()
    assert all(value != value for value in named(ranks).values())


def test_the_cpu_time_of_workers_that_live_between_two_looks_is_counted_once() -> None:
    with running(SHORT_LIVED) as process:
        ranks = Ranks()
        ranks.add(0, process.pid, 0.0)
        tell(process, b"used")
        while_one_lives = named(ranks, 10.0)
        tell(process, b"ended")
        after_it = named(ranks, 20.0)
        for _ in range(3):
            tell(process, b"used")
            tell(process, b"ended")
        unseen = named(ranks, 30.0)

    # 0.3 s in 10 s are 3 % of a core. A second worker's time would be as much again; forks take some.
    assert while_one_lives["rank/0/loader_cpu_percent"] == pytest.approx(3, abs=1)
    assert (while_one_lives["rank/0/loader_workers"], while_one_lives["rank/0/loader_starts"]) == (1, 1)
    assert after_it["rank/0/loader_cpu_percent"] < 1
    assert after_it["rank/0/cpu_percent"] < 1
    assert unseen["rank/0/loader_cpu_percent"] == pytest.approx(9, abs=2)
    assert unseen["rank/0/cpu_percent"] == pytest.approx(9, abs=2)
    assert (unseen["rank/0/loader_workers"], unseen["rank/0/loader_starts"]) == (0, 1)


def test_a_process_that_has_taken_the_pid_is_another_one() -> None:
    process = processes.RunningProcess(os.getpid())
    found = process.read()
    assert found is not None

    process._started = found.started - 1

    assert process.read() is None
    assert process.ended


def test_a_name_with_brackets_and_spaces_is_read_whole() -> None:
    numbers = " ".join(str(number) for number in range(1, 51))
    found = processes.parse(f"77 (a) b (c) S {numbers}".encode())

    assert found is not None
    assert (found.name, found.state, found.parent) == (b"a) b (c", b"S", 1)
    assert found.cpu_s == (11 + 12) / processes.TICKS_PER_S
    assert found.reaped_s == (13 + 14) / processes.TICKS_PER_S


def test_ancestors_lead_to_the_first_process() -> None:
    with running("print('started', flush=True); import sys; sys.stdin.read()") as process:
        found = processes.ancestors(process.pid)

    assert found[0] == os.getpid()
    assert processes.ancestors(2**31 - 1) == []
