"""Ranks under torchrun: whose line it is, who is signalled, who failed first (checklist 42, 46, 61, 63)."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.base import TRAIN, Base
from tests.train.live import alive, live
from tests.train.test_process import mounts
from tests.train.test_together import Hosts

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not any((Path(folder) / "torch").is_dir() for folder in sys.path), reason="torch is not installed"
    ),
]
RANK = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


@pytest.fixture
def ranks(base: Base) -> Base:
    """A base with pytorchddp on one host and two ranks."""
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"})
    return base


def lines(text: bytes, start: bytes) -> list[bytes]:
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def test_each_line_says_its_rank_and_stays_whole(ranks: Base) -> None:
    ranks.program(
        RANK + "word = f'rank{rank}-'\n"
        "for n in range(300):\n"
        "    line = (word * 20 + str(n) + '\\n').encode()\n"
        "    for at in range(0, len(line), 50): os.write(1 + n % 2, line[at:at + 50])\n"
    )

    done = ranks.train()

    for rank in (0, 1):
        tagged = lines(done.stdout + b"\n" + done.stderr, b"[algo-1 rank %d] " % rank)
        assert sorted(tagged) == sorted(b"rank%d-" % rank * 20 + b"%d" % n for n in range(300))


@pytest.mark.root
def test_where_no_temporary_file_can_be_written_ranks_are_left_to_torchrun(ranks: Base, tmp_path: Path) -> None:
    ranks.program(RANK + "print('computed')\n")
    (tmp_path / "full").mkdir()
    script = 'mount -t tmpfs -o size=4k none "$TMPDIR" && head -c 4096 /dev/zero > "$TMPDIR/x" && exec "$@"'

    done = ranks.train(command=[*mounts(), "sh", "-c", script, "sh", *TRAIN], TMPDIR=str(tmp_path / "full"))

    assert done.status == 0, done
    assert b"computed" in done.stdout
    assert re.search(rb"rank cannot be written \(No space left on device\): ranks are left to torchrun", done.stderr)


def test_each_rank_has_its_file_and_its_metrics_and_nothing_else_is_left(ranks: Base, tmp_path: Path) -> None:
    ranks.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    ranks.program(RANK + "print(f'loss={rank + 0.5}')\nsys.stderr.write('\\r 10%\\r100%\\n')\n")
    (tmp_path / "tmp").mkdir()

    ranks.train(TMPDIR=str(tmp_path / "tmp"))

    assert list((tmp_path / "tmp").iterdir()) == []
    for rank in (0, 1):
        file = ranks.output / f"data/logs/algo-1-rank-{rank}.log"
        assert sorted(file.read_bytes().split(b"\n")) == [b"", b"\r 10%\r100%", b"loss=%.1f" % (rank + 0.5)]
    samples = [json.loads(line) for line in (ranks.output / "metrics.jsonl").read_text().splitlines()]
    assert {(sample["rank"], sample["value"]) for sample in samples} == {(0, 0.5), (1, 1.5)}


@pytest.mark.parametrize("strategy", ["distributed_dataparallel", "pytorch_ddp"])
def test_ranks_of_smddp_alone_have_mpis_names_for_their_places(base: Base, strategy: str) -> None:
    """As SageMaker's mpirun names them; scripts, mmengine among them, read them."""
    base.hyperparameters(
        {
            f"sagemaker_{strategy}_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_distributed_dataparallel_custom_mpi_options": "-x COLOUR=red --verbose",
        }
    )
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    base.program(f"import os\nprint('place', *(os.environ.get(name) for name in {names}), os.environ['COLOUR'])\n")

    is_smddp = strategy == "distributed_dataparallel"

    done = base.train({"OMPI_COMM_WORLD_RANK": "7"} if is_smddp else {})  # Left by an mpirun that starts containers.

    places = {line.partition(" place ")[2] for line in done.stdout.decode().splitlines() if " place " in line}
    assert places == ({"0 2 0 2 red", "1 2 1 2 red"} if is_smddp else {"None None None None red"})
    assert "ignored under torchrun: --verbose" in done.log


def test_the_prefix_can_be_switched_off(ranks: Base) -> None:
    ranks.program(RANK + "print('hello', rank)\n")

    done = ranks.train(TOOLKIT_LOG_PREFIX="off", TOOLKIT_LOG_FILES="off")

    assert sorted(done.stdout.splitlines()) == [b"hello 0", b"hello 1"]
    assert not (ranks.output / "data/logs").exists()


def test_ranks_have_what_torchrun_gives_them(ranks: Base) -> None:
    ranks.program(
        RANK + "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'PYTHON_EXEC')\n"
        "print(*(os.environ.get(name) for name in names), os.getpid() == os.getsid(0))\n"
    )

    done = ranks.train(TOOLKIT_LOG_PREFIX="off")

    assert sorted(done.stdout.splitlines()) == [b"0 0 2 2 None True", b"1 1 2 2 None True"]


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 11)", 139), ("1 / 0", 1)])
def test_a_ranks_own_end_is_the_jobs(ranks: Base, ending: str, status: int) -> None:
    ranks.program(RANK + f"if rank == 1: {ending}\ntime.sleep(600)\n")

    done = ranks.train()

    assert done.status == status
    assert done.outcome["cause"]["rank"] == 1
    assert done.failure is not None
    assert "rank 1" in done.failure[:1024]


def test_a_slow_teardown_does_not_shift_the_blame(ranks: Base) -> None:
    # torchrun names rank 0 here: it is the first that torchrun sees end.
    ranks.program(
        RANK + "if rank == 1:\n"
        "    import atexit; atexit.register(time.sleep, 0.6); open('broken', 'w'); raise ValueError('the culprit')\n"
        "while not os.path.exists('broken'): time.sleep(0.01)\n"
        "time.sleep(600)\n"
    )

    done = ranks.train()

    assert done.failure is not None
    assert 'ErrorMessage "ValueError: the culprit' in done.failure
    assert done.outcome["cause"]["rank"] == 1


def test_torchrun_says_nothing_of_a_failed_rank_though_its_sibling_takes_long_to_end(ranks: Base) -> None:
    ranks.program(
        RANK + "import signal\n"
        "if rank == 1:\n"
        "    while not os.path.exists('ready'): time.sleep(0.01)\n"
        "    raise ValueError('the culprit')\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(5)))\n"
        "open('ready', 'w')\n"
        "while True: time.sleep(0.1)\n"
    )

    done = ranks.train()

    assert done.status == 1
    assert "torchrun]" not in done.log, done.log  # "Sending process 71 closing signal SIGTERM", and its own page.


def test_every_rank_saves_on_sigterm_with_its_children_alive(ranks: Base) -> None:
    ranks.program(
        RANK + "import multiprocessing, signal\n"
        "def work(pipe):\n"
        "    while pipe.recv(): pipe.send('alive')\n"
        "def save(*_):\n"
        "    ours.send(True)\n"
        "    print('saved with its worker', ours.recv(), flush=True)\n"
        "    ours.send(False); worker.join(); sys.exit(0)\n"
        "ours, theirs = multiprocessing.Pipe()\n"
        "worker = multiprocessing.get_context('fork').Process(target=work, args=(theirs,))\n"
        "worker.start()\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )

    with live(ranks) as running:
        running.until(b"ready\n", count=2)
        running.signal()
        done = running.end()

    assert done.stdout.count(b"saved with its worker alive") == 2
    assert done.status == 0


def test_ranks_that_ignore_the_signal_are_killed_and_nothing_is_left(ranks: Base) -> None:
    ranks.program(
        RANK + "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "worker = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(f'pids={os.getpid()},{worker.pid}.', flush=True)\n"
        "time.sleep(600)\n"
    )

    with live(ranks, TOOLKIT_GRACE_S="0.5", TOOLKIT_LOG_PREFIX="off") as running:
        running.until(b".\n", count=2)
        running.signal()
        done = running.end()

    pids = [int(pid) for line in lines(done.stdout, b"pids=") for pid in line.rstrip(b".").split(b",")]
    assert len(pids) == 4
    assert not any(alive(pid) for pid in pids)
    assert done.status == 143


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Two hosts of a rank each."""
    hosts = Hosts(tmp_path)
    hosts.environ["MASTER_PORT"] = str(free_port())
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "1"})
    return hosts


@pytest.mark.parametrize("slow", ["algo-1", "algo-2"])
def test_a_stopped_torchrun_waits_in_silence_while_another_hosts_rank_saves(hosts: Hosts, slow: str) -> None:
    """It had been ended after 5 s, with a page of traceback."""
    for name, base in hosts.bases.items():
        base.program(
            "import signal, time\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
            "print('ready', flush=True)\n"
            f"signal.sigwait({{signal.SIGTERM}}); time.sleep({6.5 if name == slow else 0})\n"
            "print('saved', flush=True)\n"
        )
    with hosts.start() as running:
        for host in running.values():
            host.until(b"ready\n")
        running["algo-2"].signal()
        done = {name: host.end() for name, host in running.items()}

    for name, end in done.items():
        assert end.status == 0, (name, end.stderr)
        assert b"saved\n" in end.stdout
        assert b"Traceback" not in end.stderr
        assert b"SIGKILL to" not in end.stderr


def test_a_torchrun_serves_the_other_hosts_until_the_last_rank_has_ended_and_then_goes(hosts: Hosts) -> None:
    """Left to themselves, torchruns lose each other at the end now and then, and say so with a traceback."""
    pid = hosts.folder / "pid"
    hosts.bases["algo-1"].program(
        f"import os, pathlib\npathlib.Path({str(pid)!r} + '~').write_text(str(os.getpid()))\n"
        f"os.rename({str(pid)!r} + '~', {str(pid)!r})\n"
    )
    hosts.bases["algo-2"].program(
        "import os, pathlib, socket, time\n"
        f"while not os.path.exists({str(pid)!r}): time.sleep(0.01)\n"
        f"while os.path.exists('/proc/' + pathlib.Path({str(pid)!r}).read_text()): time.sleep(0.01)\n"
        "time.sleep(1)\n"
        "socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()\n"
        "print('the store of the other host is there')\n"
    )

    done = hosts.run()

    assert b"is there\n" in done["algo-2"].stdout
    assert "host algo-2 (host 2 of 2, follower)" in done["algo-2"].log
    for name, item in done.items():
        assert item.status == 0, (name, item.stderr)
        assert item.succeeded
        assert b"Traceback" not in item.stderr
        (launcher,) = (end for end in item.outcome["exits"] if end.get("rank") is None)
        assert launcher["signalled"], item.outcome


def test_a_torchrun_whose_ranks_have_ended_goes_in_silence_when_another_host_fails(hosts: Hosts) -> None:
    hosts.bases["algo-1"].program("print('done', flush=True)\n")
    go = hosts.folder / "go"
    hosts.bases["algo-2"].program(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise ValueError('boom')\n"
    )
    with hosts.start() as running:
        running["algo-1"].until(b"done\n")
        go.touch()
        done = {name: host.end() for name, host in running.items()}

    assert {end.status for end in done.values()} == {1}
    assert "ValueError: boom" in str(done["algo-1"].failure)
    assert b"Traceback" not in done["algo-1"].stderr


def test_ranks_that_end_while_others_have_yet_to_start_are_not_all(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "4"})
        base.program("print('here')\n")

    done = hosts.run()

    assert {end.status for end in done.values()} == {0}
    assert all(end.stdout.count(b"here\n") == 4 for end in done.values())


def test_a_rank_that_hangs_is_seen_though_those_of_another_host_have_ended(hosts: Hosts) -> None:
    hosts.bases["algo-1"].program("")
    hosts.bases["algo-2"].program("import time\ntime.sleep(600)\n")

    done = hosts.run(TOOLKIT_STALL_S="1")

    assert {end.status for end in done.values()} == {124}
    assert all("rank 1" in str(end.failure) for end in done.values())


def test_neurons_compiler_has_the_time_to_compile_when_the_ranks_have_ended(ranks: Base) -> None:
    """It stands in front of torchrun, and is no launcher that ends with its ranks."""
    ranks.program(RANK + "print('traced', rank)\n")
    ranks.executable("neuron_parallel_compile", '#!/bin/sh\n"$@" && sleep 1 && echo compiled\n')

    done = ranks.train(RUN_NEURON_PARALLEL_COMPILE="1", TOOLKIT_LOG_PREFIX="off")

    assert sorted(done.stdout.splitlines()) == [b"compiled", b"traced 0", b"traced 1"]
    assert done.status == 0


def test_nothing_survives_a_killed_train(ranks: Base) -> None:
    from tests.train.live import gone

    ranks.program(RANK + "print(f'pid={os.getpid()}.', flush=True)\ntime.sleep(600)\n")

    with live(ranks, TOOLKIT_LOG_PREFIX="off") as running:
        running.until(b".\n", count=2)
        pids = [int(line.rstrip(b".")) for line in lines(running.out, b"pid=")]
        running.signal(signal.SIGKILL)
        running.process.wait()

        assert all(gone(pid) for pid in pids)


def test_a_module_and_a_shell_script_run_too(ranks: Base) -> None:
    ranks.hyperparameters(
        {"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}, program="pkg.mod"
    )
    ranks.program("", "pkg/__init__.py")
    ranks.program(RANK + "print('module', rank)\n", "pkg/mod.py")
    assert sorted(ranks.train(TOOLKIT_LOG_PREFIX="off").stdout.splitlines()) == [b"module 0", b"module 1"]

    ranks.hyperparameters(
        {"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2", "x": "1"},
        program="run.sh",
    )
    ranks.program('echo "shell $RANK $@"\n', "run.sh")
    assert sorted(ranks.train(TOOLKIT_LOG_PREFIX="off").stdout.splitlines()) == [b"shell 0 -x 1", b"shell 1 -x 1"]


def test_without_the_rank_shim_torchrun_keeps_its_ranks(ranks: Base) -> None:
    ranks.program(RANK + "print('hello', rank, os.getppid() == int(os.environ['AGENT']))\n")

    done = ranks.train(TOOLKIT_RANK_SHIM="off", AGENT="0")

    assert done.stdout.count(b"hello") == 2
    assert done.status == 0


def test_a_missing_torch_is_named_with_what_to_do(ranks: Base) -> None:
    ranks.program("")
    command = [sys.executable, "-S", "-c"]
    root = Path(__file__).parents[2]
    packages = [path for path in sys.path if (Path(path) / "msgspec").is_dir()]
    (ranks.folder / "slim").mkdir()
    (ranks.folder / "slim/msgspec").symlink_to(Path(packages[0]) / "msgspec")
    paths = [str(root), str(ranks.folder / "slim")]
    code = f"import sys; sys.path[:0] = {paths}; from toolkit.cli.main import train; train()"

    done = ranks.train(command=[*command, code])

    assert done.status == 78
    assert done.failure is not None
    assert "torch" in done.failure
    assert "requirements.txt" in done.failure
