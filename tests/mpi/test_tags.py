"""Without rank shims (TOOLKIT_RANK_SHIM=off): real mpiruns relay their ranks' output, and `train` says whose it is."""

import json

import pytest

from tests.mpi.playing import Hosts
from tests.mpi.test_hosts import SUM
from tests.train.base import Done

pytestmark = pytest.mark.mpi

# Every rank has the first half of a line out before any writes the second.
HALVES = """
os.write(1, b"half %d " % rank)
world.Barrier()
os.write(1, b"and whole, [1] and [2]\\n\\n  \\xe9 ")
os.write(2, b"error of %d\\n" % rank)
os.write(1, b"x" * 20000 + b"\\nno newline")
"""


def out_of(done: Done, rank: int, host: str, *, stream: str = "stdout") -> list[bytes]:
    """Return a rank's lines on one of the console's streams."""
    tag = f"[1,mpirank:{rank},{host}]<{stream}>:".encode()
    output = done.stdout if stream == "stdout" else done.stderr
    return [line.removeprefix(tag) for line in output.split(b"\n") if line.startswith(tag)]


def test_each_line_of_one_host_says_whose_it_is_and_metrics_know_it(alone: Hosts) -> None:
    alone.bases["algo-1"].document("metric-definition-regex.json", [{"Name": "sum", "Regex": "^sum ([0-9]+)"}])
    alone.program(SUM)

    done = alone.run(TOOLKIT_RANK_SHIM="off")["algo-1"]

    assert done.status == 0, done
    for rank in (0, 1):
        assert out_of(done, rank, "algo-1") == [b"sum 3 algo-1"]
    samples = [json.loads(line) for line in (done.base.output / "metrics.jsonl").read_text().splitlines()]
    assert sorted((sample["rank"], sample["value"]) for sample in samples) == [(0, 3.0), (1, 3.0)]


def test_lines_of_two_hosts_are_whole_and_say_the_host_that_the_rank_is_on(hosts: Hosts) -> None:
    hosts.hyperparameters(sagemaker_mpi_num_of_processes_per_host=2)
    hosts.bases["algo-1"].document("metric-definition-regex.json", [{"Name": "half", "Regex": "^half ([0-9]+)"}])
    hosts.program(HALVES)

    done = hosts.run(TOOLKIT_RANK_SHIM="off")

    assert [end.status for end in done.values()] == [0, 0], done
    leader = done["algo-1"]  # It alone has mpirun, whose output theirs is.
    for rank, host in enumerate(("algo-1", "algo-1", "algo-2", "algo-2")):
        full_line = b"half %d and whole, [1] and [2]" % rank
        assert out_of(leader, rank, host) == [full_line, b"", b"  \xe9 " + b"x" * 20000, b"no newline"], leader
        assert out_of(leader, rank, host, stream="stderr") == [b"error of %d" % rank], leader
    samples = [json.loads(line) for line in (leader.base.output / "metrics.jsonl").read_text().splitlines()]
    assert {(sample["rank"], sample["host"]) for sample in samples} == {
        (rank, f"algo-{1 + rank // 2}") for rank in range(4)
    }


@pytest.mark.parametrize(("choice", "prefix"), [("rank", b"[algo-1 rank 1] "), ("off", b"")])
def test_the_prefix_is_the_one_asked_for(alone: Hosts, choice: str, prefix: bytes) -> None:
    alone.program("if rank: print('said', flush=True)\n")

    done = alone.run(TOOLKIT_RANK_SHIM="off", TOOLKIT_LOG_PREFIX=choice)["algo-1"]

    assert done.status == 0, done
    assert prefix + b"said" in done.stdout.split(b"\n")


def test_what_a_rank_died_of_is_told_without_its_tag(alone: Hosts) -> None:
    alone.program("world.Barrier()\nif rank: raise RuntimeError('boom')\nworld.recv(source=1)\n")

    done = alone.run(TOOLKIT_RANK_SHIM="off")["algo-1"]

    assert done.status == 1, done
    assert "RuntimeError: boom" in str(done.failure)
    assert "<stderr>" not in str(done.failure)
