"""Jobs under real mpiruns: Open MPI 4 and 5 and MPICH, one host and two, without an sshd (checklist 52, 55, 56, 61)."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.mpi.conftest import ready
from tests.mpi.playing import Hosts
from tests.train.live import Live

pytestmark = pytest.mark.mpi

SUM = "print('sum', world.allreduce(rank + 1), os.environ['SM_CURRENT_HOST'], flush=True)\n"
# One rank is done at once; the other saves for longer than any mpirun would leave it.
SAVES = """
world.Barrier()
def save(number, frame):
    for _ in range(30 if rank else 0):
        time.sleep(0.1)
    print("saved", rank, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


def test_ranks_of_one_host_meet_and_each_line_says_whose_it_is(alone: Hosts) -> None:
    alone.bases["algo-1"].document("metric-definition-regex.json", [{"Name": "sum", "Regex": "^sum ([0-9]+)"}])
    alone.program(SUM + "sys.stderr.write('half'); sys.stderr.flush(); sys.stderr.write(' a line\\n')\n")

    done = alone.run()["algo-1"]

    assert done.status == 0, done
    for rank in (0, 1):
        assert f"[1,mpirank:{rank},algo-1]<stdout>:sum 3 algo-1".encode() in done.stdout.splitlines()
        assert f"[1,mpirank:{rank},algo-1]<stderr>:half a line".encode() in done.stderr.splitlines()
    samples = [json.loads(line) for line in (done.base.output / "metrics.jsonl").read_text().splitlines()]
    assert sorted((sample["rank"], sample["value"]) for sample in samples) == [(0, 3.0), (1, 3.0)]


def test_ranks_of_two_hosts_meet_without_an_sshd_and_know_their_own_host(hosts: Hosts) -> None:
    hosts.hyperparameters(sagemaker_mpi_num_of_processes_per_host=2)
    hosts.program(SUM)

    with hosts.start() as running:
        done = {"algo-1": running["algo-1"].end()}
        began_s = time.monotonic()
        done["algo-2"] = running["algo-2"].end()
        late_s = time.monotonic() - began_s

    assert late_s < 10  # 52: a follower ends with the leader, where the original slept for 30 s and more.
    for number, (host, end) in enumerate(done.items()):
        assert end.status == 0, done
        for rank in (2 * number, 2 * number + 1):
            assert f"[1,mpirank:{rank},{host}]<stdout>:sum 10 {host}".encode() in end.stdout.splitlines()


def test_hosts_may_have_names_with_a_domain(bed: str, tmp_path: Path) -> None:
    """As the pods of a JobSet have."""
    names = ("digits-hosts-0-0.digits", "digits-hosts-0-1.digits")
    hosts = Hosts(tmp_path, bed, names=names)
    hosts.program(SUM)

    done = hosts.run()

    for rank, (host, end) in enumerate(done.items()):
        assert end.status == 0, done
        assert f"[1,mpirank:{rank},{host}]<stdout>:sum 3 {host}".encode() in end.stdout.splitlines()


def test_a_host_that_is_none_of_the_jobs_is_refused_at_once(openmpi4: str, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, openmpi4)
    hosts.hyperparameters(sagemaker_mpi_custom_mpi_options="--host elsewhere:1")
    hosts.program(SUM)

    done = hosts.run()

    assert all(end.status not in (0, 75) for end in done.values()), done
    assert b"mpirun wants to start elsewhere, which is none of this job's other hosts" in done["algo-1"].stderr


@pytest.mark.parametrize(
    ("ends", "code", "cause"),
    [
        ("print('no such shard', file=sys.stderr); sys.exit(3)", 3, 'ErrorMessage "no such shard'),
        ("os._exit(7)", 7, "ended with code 7"),
        ("raise RuntimeError('boom')", 1, "RuntimeError: boom"),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
    ],
)
def test_a_rank_that_dies_ends_all_hosts_at_once_with_its_code_and_cause(
    hosts: Hosts, ends: str, code: int, cause: str
) -> None:
    hosts.program(f"world.Barrier()\nif rank: {ends}\nworld.recv(source=1)\n")

    done = hosts.run()

    for end in done.values():
        assert end.status == code, end
        assert end.failure is not None
        assert cause in end.failure
        assert "host algo-2, rank 1" in end.failure
        assert "mpi-abort" not in end.failure  # mpirun's own words
    assert "-m mpi4py train.py" in str(done["algo-2"].failure)


def test_a_rank_of_another_host_than_mpiruns_is_named_with_open_mpis_words_for_its_abort(
    openmpi4: str, tmp_path: Path
) -> None:
    hosts = Hosts(tmp_path, openmpi4)
    hosts.program(
        "world.Barrier()\nif rank:\n    print('sending', file=sys.stderr, flush=True)\n    world.Abort(7)\n"
        "world.recv(source=1)\n"
    )

    for done in hosts.run().values():
        assert done.status == 7
        assert "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 7" in str(done.failure)
        assert "it last said: sending" in str(done.failure)
        assert "host algo-2, rank 1" in str(done.failure)


LEAVES = "world.Barrier()\nif rank == {who}:\n    sys.stdout.flush(); os._exit(0)\nworld.recv(source={who})\n"


def test_a_rank_that_leaves_without_mpi_finalize_ends_its_host_and_is_the_cause(tmp_path: Path) -> None:
    alone = Hosts(tmp_path, ready("mpich"), names=("algo-1",), per_host=2)
    alone.program(LEAVES.replace("{who}", "1"))

    (done,) = alone.run().values()

    assert done.status == 1, (done.log, done.outcome)
    assert "rank 1 of host algo-1 ended with 0" in str(done.failure)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_leaves_without_mpi_finalize_ends_all_hosts_and_is_the_cause(tmp_path: Path, who: int) -> None:
    hosts = Hosts(tmp_path, ready("mpich"))
    hosts.program(LEAVES.replace("{who}", str(who)))

    for done in hosts.run().values():
        assert done.status == 1
        assert f"rank {who} of host algo-{who + 1} ended with 0" in str(done.failure)


def test_a_rank_that_works_on_after_mpi_finalize_waits_for_nobody(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ready("mpich"))
    hosts.program("world.Barrier()\nMPI.Finalize()\nif rank:\n    os._exit(0)\ntime.sleep(3)\n")

    assert {done.status for done in hosts.run().values()} == {0}


def test_a_rank_that_aborts_is_named_with_mpichs_words_for_it(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ready("mpich"))
    hosts.program("world.Barrier()\nif rank: world.Abort(7)\nworld.recv(source=1)\n")

    done = hosts.run()

    for end in done.values():
        assert end.status == 7, end
        assert 'ErrorMessage "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort' in str(end.failure)
        assert "host algo-2, rank 1" in str(end.failure)


def stopped(running: dict[str, Live], ranks: int) -> None:
    """Let every rank get ready, and stop the leader."""
    for host in running.values():
        host.until(b"up", count=ranks)
    running["algo-1"].signal(signal.SIGTERM)


def test_a_stop_lets_each_rank_save_and_ends_as_the_script_does(hosts: Hosts) -> None:
    hosts.program(SAVES)

    with hosts.start() as running:
        stopped(running, 1)
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [0, 0], done
    assert b"saved 0" in done["algo-1"].stdout
    assert b"saved 1" in done["algo-2"].stdout


def test_a_stop_lets_each_rank_of_one_host_save(openmpi4: str, tmp_path: Path) -> None:
    alone = Hosts(tmp_path, openmpi4, names=("algo-1",), per_host=2)
    alone.program(SAVES)

    with alone.start() as running:
        stopped(running, 2)
        done = running["algo-1"].end()

    assert done.status == 0, done
    assert b"saved 0" in done.stdout
    assert b"saved 1" in done.stdout


def test_ranks_that_a_stop_kills_do_not_take_those_that_save_with_them(hosts: Hosts) -> None:
    hosts.program(SAVES.replace("signal.signal(", "if rank: signal.signal("))

    with hosts.start() as running:
        stopped(running, 1)
        done = {name: host.end() for name, host in running.items()}

    assert [end.status for end in done.values()] == [143, 143], done
    assert b"saved 1" in done["algo-2"].stdout


REPEATED = {
    "openmpi4": "-mca btl_vader_single_copy_mechanism none --bind-to core -x COLOUR=red",
    "openmpi5": "--mca smsc ^cma --bind-to core --map-by core -x COLOUR=red",
    "mpich": "-genvnone -x COLOUR=red",
}


def test_custom_options_that_repeat_ours_are_taken(alone: Hosts, bed: str) -> None:
    """Contract point 44: these mpiruns refuse an option that is given twice."""
    parameters = {"sagemaker_mpi_num_of_processes_per_host": 2, "sagemaker_mpi_custom_mpi_options": REPEATED[bed]}
    alone.hyperparameters(**parameters)
    alone.program(SUM + "print(os.environ['COLOUR'], flush=True)\n")

    done = alone.run()["algo-1"]

    assert done.status == 0, done
    for rank in (0, 1):
        assert f"[1,mpirank:{rank},algo-1]<stdout>:red".encode() in done.stdout.splitlines()


def test_a_script_that_mpirun_did_not_start_can_import_mpi4py(alone: Hosts, bed: str) -> None:
    alone.hyperparameters(sagemaker_mpi_enabled=False)
    alone.bases["algo-1"].program("from mpi4py import MPI\nprint(MPI.COMM_WORLD.Get_size())\n")

    done = alone.run()["algo-1"]

    assert (done.status, done.stdout) == (0, b"1\n"), done


@pytest.mark.root
def test_names_that_the_machine_maps_to_itself_leave_each_rank_on_its_host(hosts: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost algo-1 algo-2\n")
    own_names = ("unshare", "-m", "/bin/sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(file))
    hosts.program(SUM)

    ends = hosts.run(own_names)

    for name, done in ends.items():
        assert done.status == 0, done
        assert f"sum 3 {name}".encode() in done.stdout, done


def test_a_host_that_was_given_no_rank_is_no_success(openmpi4: str, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, openmpi4)
    hosts.hyperparameters(sagemaker_mpi_custom_mpi_options="--host localhost:2")
    hosts.program(SUM)

    ends = hosts.run()

    for done in ends.values():
        assert done.status == 78, done
        assert "mpirun started no rank on host algo-2" in (done.failure or "")


@pytest.mark.parametrize("bed", ["openmpi4", "mpich"])
def test_any_folder_can_be_the_one_for_temporary_files(bed: str, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, ready(bed))
    odd = tmp_path / f"a b 'q' \"größe\" $HOME {'x' * 120}"
    odd.mkdir()
    hosts.program(SUM + "import tempfile; print('in', tempfile.gettempdir(), flush=True)\n")

    ends = hosts.run(TMPDIR=str(odd))

    for name, done in ends.items():
        assert done.status == 0, done
        assert f"sum 3 {name}".encode() in done.stdout, done
        assert f"in {odd}".encode() in done.stdout, done
    assert list(odd.iterdir()) == []
