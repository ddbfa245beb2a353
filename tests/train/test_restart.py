"""The ranks started again after a failure that is worth it, on one host and on two (docs/restart.md).

Which failures are worth it is in tests/job/test_restart.py, what the hosts say to each other in tests/train/peers.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.train.base import Base, Done
from tests.train.live import Live, live

needs_torch = pytest.mark.skipif(
    not any((Path(folder) / "torch").is_dir() for folder in sys.path), reason="torch is not installed"
)
# Four torch processes that start twice, on two cores that others use, too.
DEADLINE_S = 180.0
# Counts to five, from its checkpoint, and tells each step; a line of its own decides what happens in which round.
COUNTS = """
import os, signal, sys, time
from pathlib import Path
from toolkit import status
base, host = Path(os.environ["SAGEMAKER_BASE_DIR"]), os.environ["CURRENT_HOST"]
rank, round = int(os.environ.get("RANK", 0)), int(os.environ["TOOLKIT_RESTART_COUNT"])
saved = base / "checkpoints" / f"step-{rank}"
start = int(saved.read_text()) if saved.exists() else 0
print(f"{host} rank {rank} round {round} goes on after step {start}", flush=True)
for step in range(start + 1, 6):
    status.heartbeat(step)
    SCRIPT
    saved.write_text(str(step))
print(f"{host} rank {rank} done", flush=True)
"""
FAILS_AT_3 = "if step == 3 and round == 0 and (host, rank) == WHO: raise RuntimeError('boom')"
# Fails, or waits to be stopped, once both hosts have saved step 2.
MEET = (
    "saves = base.parents[2].glob\n"
    "    while step == 3 and round == 0 and [p.read_text() for p in saves('*/opt/ml/checkpoints/*')] != ['2'] * 2:\n"
    "        time.sleep(0.01)\n    "
)
WAITS_WITH_IT = FAILS_AT_3 + "\n    if step == 3 and round == 0: time.sleep(600)"


def counts(base: Base, script: str, who: tuple[str, int] = ("algo-1", 0)) -> None:
    base.program(COUNTS.replace("SCRIPT", script.replace("WHO", repr(who))))
    (base.root / "checkpoints").mkdir(parents=True, exist_ok=True)


def ranks(base: Base, count: int) -> None:
    base.hyperparameters(
        {"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": str(count)}
    )


class Hosts:
    """Two hosts of one job on this machine."""

    def __init__(self, folder: Path) -> None:
        self.bases = {name: Base(folder / name) for name in ("algo-1", "algo-2")}
        for name, base in self.bases.items():
            base.resources(list(self.bases), current=name)
        ports = [str(port) for port in free_ports(2)]
        self.environ = {
            "TOOLKIT_LINK_PORT": ports[0],
            "MASTER_PORT": ports[1],
            "TOOLKIT_HOST_ADDRESSES": ",".join(f"{name}=127.0.0.1" for name in self.bases),
        }

    @contextlib.contextmanager
    def start(self, **more: str) -> Iterator[dict[str, Live]]:
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(live(base, **{**self.environ, **more})) for name, base in self.bases.items()
            }

    def run(self, **more: str) -> dict[str, Done]:
        with self.start(**more) as running:
            return {name: end.end(deadline_s=DEADLINE_S) for name, end in running.items()}


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_a_script_that_fails_goes_on_from_its_checkpoint(base: Base) -> None:
    counts(base, FAILS_AT_3)

    done = base.train(TOOLKIT_RESTARTS="2")

    assert done.status == 0
    assert done.succeeded
    assert b"algo-1 rank 0 round 1 goes on after step 2\n" in done.stdout
    assert b"restart (1 of 2) after script of host algo-1 failed: RuntimeError: boom" in done.stderr
    (restart,) = done.outcome["restarts"]
    assert (restart["attempt"], restart["host"], restart["exit_code"], restart["counted"]) == (1, "algo-1", 1, True)
    assert restart["failed_ns"] > 0
    assert "RuntimeError: boom" in restart["message"]


def test_without_the_setting_nothing_is_started_again(base: Base) -> None:
    counts(base, FAILS_AT_3.replace("and round == 0 ", ""))
    text = (base.code / "train.py").read_text()
    base.program(text.replace('int(os.environ["TOOLKIT_RESTART_COUNT"])', '"TOOLKIT_RESTART_COUNT" in os.environ'))

    done = base.train()

    assert done.status == 1
    assert b"round False" in done.stdout
    assert b"restart" not in done.stderr
    assert done.outcome["restarts"] == []


def test_an_error_before_the_first_step_is_not_tried_again(base: Base) -> None:
    base.program("import no_such_module_here\n")

    done = base.train(TOOLKIT_RESTARTS="2")

    assert done.status == 1
    assert b"no restart: no step was seen since the ranks were started" in done.stderr
    assert done.outcome["restarts"] == []


def test_when_all_are_used_up_the_last_cause_is_told_with_their_number(base: Base) -> None:
    counts(base, "raise SystemExit(10 + round)")

    done = base.train(TOOLKIT_RESTARTS="2")

    assert done.status == 12
    assert "ended with code 12; after 2 restarts" in str(done.failure)
    assert b"no restart: all of TOOLKIT_RESTARTS=2 are used up" in done.stderr
    assert [restart["exit_code"] for restart in done.outcome["restarts"]] == [10, 11]


@pytest.mark.parametrize(
    ("document", "script"),
    [
        ([{"Name": "step_time", "Regex": "step_time=([0-9.]+)"}], "print('step_time=0.1')"),
        ([{"Name": "step", "Regex": "at ([0-9]+)"}], "print('at 7')"),
        ([], "(Path(os.environ['SAGEMAKER_BASE_DIR']) / 'checkpoints' / 'new').mkdir(parents=True)"),
    ],
)
def test_a_metric_or_a_checkpoint_is_a_step_too(base: Base, document: list[dict[str, str]], script: str) -> None:
    base.document("metric-definition-regex.json", document)
    base.program(f"import os\nfrom pathlib import Path\n{script}\nraise SystemExit(3)\n")

    done = base.train(TOOLKIT_RESTARTS="1")

    assert b"restart (1 of 1)" in done.stderr
    assert done.status in (3, 1)  # The folder is there already in the second round: FileExistsError.


def test_a_checkpoint_that_a_clock_set_back_dates_before_the_last_one_is_a_step_too(base: Base) -> None:
    checkpoints = base.root / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "before").touch()
    os.utime(checkpoints / "before", (2e9, 2e9))
    base.program(f"import pathlib\npathlib.Path({str(checkpoints / 'new')!r}).touch()\nraise SystemExit(3)\n")

    done = base.train(TOOLKIT_RESTARTS="1")

    assert b"restart (1 of 1)" in done.stderr


def test_the_steps_of_one_round_do_not_count_for_the_next(base: Base) -> None:
    counts(base, "if step == 3: raise SystemExit(3)")
    text = (base.code / "train.py").read_text()
    base.program("import os\nif os.environ['TOOLKIT_RESTART_COUNT'] == '1': raise SystemExit(4)\n" + text)

    done = base.train(TOOLKIT_RESTARTS="5")

    assert done.status == 4
    assert len(done.outcome["restarts"]) == 1
    assert b"no restart: no step was seen" in done.stderr


def test_a_failure_file_of_an_earlier_round_is_not_the_jobs(base: Base) -> None:
    counts(base, "raise ValueError('the last round') if round else None")
    text = (base.code / "train.py").read_text()
    base.program(
        text + "\nfrom pathlib import Path\nPath(os.environ['SM_OUTPUT_DIR'], 'failure').write_text('round 0')\n"
        "raise SystemExit(3)\n"
    )

    done = base.train(TOOLKIT_RESTARTS="1")

    assert done.status == 1
    assert "the last round" in str(done.failure)


def test_a_preemption_of_a_job_that_moves_on_is_not_counted(base: Base) -> None:
    counts(base, "if step == 2 + round and round < 3: os.kill(os.getpid(), signal.SIGTERM)")

    done = base.train(TOOLKIT_RESTARTS="1")

    assert done.status == 0
    assert [restart["counted"] for restart in done.outcome["restarts"]] == [False] * 3
    assert b"restart (not counted, a preemption; 0 of 1 used)" in done.stderr


def test_a_hang_is_worth_a_restart_and_its_stacks_are_kept(base: Base) -> None:
    counts(base, "if round < 2 and step == 3: time.sleep(600)")

    done = base.train(TOOLKIT_RESTARTS="2", TOOLKIT_STALL_S="1")

    assert done.status == 0
    assert [restart["exit_code"] for restart in done.outcome["restarts"]] == [124, 124]
    stacks = base.output / "data/stacks"
    assert (stacks / "algo-1-script.txt").exists()
    assert (stacks / "attempt-1/algo-1-script.txt").exists()


def test_a_rule_that_ends_the_job_ends_it(base: Base) -> None:
    counts(base, "print('loss=nan', flush=True); time.sleep(600)")
    rules = base.folder / "rules.json"
    rules.write_text(json.dumps([{"name": "nan", "pattern": "loss=nan", "action": "no-retry"}]))

    done = base.train(TOOLKIT_RESTARTS="2", TOOLKIT_RULES=str(rules))

    assert done.status == 93
    assert b"no restart: HealthRule would come again" in done.stderr


def test_a_rule_waits_anew_in_each_round(base: Base) -> None:
    """Counted from the job's start, the second round's first match would come too late."""
    base.program(
        "import os, time\nfrom toolkit import status\n"
        "time.sleep(2)\nstatus.heartbeat(1)\nprint('up', flush=True)\n"
        "raise SystemExit(3 if os.environ['TOOLKIT_RESTART_COUNT'] == '0' else 0)\n"
    )
    rules = base.folder / "rules.json"
    rule = {"name": "up", "pattern": "up", "expected_start_within_s": 3.9, "action": "stop", "data_points": 1}
    rules.write_text(json.dumps([rule]))

    done = base.train(TOOLKIT_RESTARTS="2", TOOLKIT_RULES=str(rules))

    assert done.status == 0
    assert b"late start" not in done.stderr


def test_a_stop_ends_the_job_in_any_round(base: Base) -> None:
    counts(base, FAILS_AT_3 + "\n    if round == 1: print('waiting', flush=True); time.sleep(600)")
    with live(base, TOOLKIT_RESTARTS="5") as running:
        running.until(b"waiting\n")
        running.signal(signal.SIGTERM)
        done = running.end()

    assert done.status == 143
    assert "after 1 restart" in str(done.failure)
    assert b"round 2" not in done.stdout


@needs_torch
@pytest.mark.torch
def test_ranks_under_torchrun_start_again_and_their_files_go_on(base: Base) -> None:
    ranks(base, 2)
    # Rank 1 fails once rank 0 is there, too.
    waits = "while step == 3 and round == 0 and rank and not (base / 'checkpoints/step-0').exists(): time.sleep(0.01)"
    counts(base, f"{waits}\n    {WAITS_WITH_IT}", ("algo-1", 1))

    done = base.train(TOOLKIT_RESTARTS="1", deadline_s=DEADLINE_S)

    assert done.status == 0
    assert done.outcome["restarts"][0]["rank"] == 1
    for rank in (0, 1):
        lines = (base.output / f"data/logs/algo-1-rank-{rank}.log").read_text().splitlines()
        assert lines[0] == f"algo-1 rank {rank} round 0 goes on after step 0"
        # How far rank 0 had come when rank 1 raised is its own affair.
        assert lines[-2].startswith(f"algo-1 rank {rank} round 1 goes on after step {2 if rank else ''}")
        assert lines[-1] == f"algo-1 rank {rank} done"


@pytest.mark.parametrize("culprit", ["algo-1", "algo-2"])
def test_both_hosts_start_again_when_one_fails(hosts: Hosts, culprit: str) -> None:
    for base in hosts.bases.values():
        counts(base, MEET + WAITS_WITH_IT, (culprit, 0))

    done = hosts.run(TOOLKIT_RESTARTS="1")

    for name, end in done.items():
        assert end.status == 0, end
        assert b"round 1 goes on after step 2\n" in end.stdout
        assert f"restart (1 of 1) after script of host {culprit} failed: RuntimeError: boom".encode() in end.stderr
        (restart,) = end.outcome["restarts"]
        assert (restart["attempt"], restart["host"]) == (1, culprit), name


@needs_torch
@pytest.mark.torch
def test_both_hosts_start_again_under_torchrun(hosts: Hosts) -> None:
    """With collectives: the old ranks' rendezvous is gone, and the new ones find each other at the same port."""
    for base in hosts.bases.values():
        ranks(base, 1)
        counts(base, FAILS_AT_3 + "\n    dist.barrier()", ("algo-2", 1))
        text = (base.code / "train.py").read_text()
        base.program("import torch.distributed as dist\ndist.init_process_group('gloo')\n" + text)

    done = hosts.run(TOOLKIT_RESTARTS="1")

    for end in done.values():
        assert end.status == 0, end
        (restart,) = end.outcome["restarts"]
        assert (restart["host"], restart["rank"]) == ("algo-2", 1)
        assert b"round 1 goes on after step 2\n" in end.stdout


def test_an_error_at_import_on_one_of_two_hosts_is_not_tried_again(hosts: Hosts) -> None:
    hosts.bases["algo-1"].program("import time\ntime.sleep(600)\n")
    hosts.bases["algo-2"].program("import no_such_module_here\n")

    done = hosts.run(TOOLKIT_RESTARTS="2")

    assert {end.status for end in done.values()} == {1}
    assert b"no restart: no step was seen" in done["algo-1"].stderr


def test_both_hosts_end_with_the_last_cause_when_all_are_used_up(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        counts(base, "if host == 'algo-2': raise SystemExit(10 + round)\n    time.sleep(600)")

    done = hosts.run(TOOLKIT_RESTARTS="2")

    for end in done.values():
        assert end.status == 12
        assert "after 2 restarts" in str(end.failure)
        assert [restart["exit_code"] for restart in end.outcome["restarts"]] == [10, 11]


@pytest.mark.parametrize("stopped", ["algo-1", "algo-2"])
def test_a_stop_of_one_host_in_a_later_round_stops_both(hosts: Hosts, stopped: str) -> None:
    for base in hosts.bases.values():
        counts(base, MEET + WAITS_WITH_IT + "\n    if round == 1: print('waiting', flush=True); time.sleep(600)")
    with hosts.start(TOOLKIT_RESTARTS="3") as running:
        for restart in running.values():
            restart.until(b"waiting\n")
        running[stopped].signal(signal.SIGTERM)
        done = {name: end.end() for name, end in running.items()}

    assert {end.status for end in done.values()} == {143}
    assert all(b"round 2" not in end.stdout for end in done.values())
    assert all(len(end.outcome["restarts"]) == 1 for end in done.values())


def test_a_host_that_vanishes_in_a_later_round_ends_the_job_with_its_name(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        counts(base, MEET + WAITS_WITH_IT + "\n    if round == 1: print('waiting', flush=True); time.sleep(600)")
    with hosts.start(TOOLKIT_RESTARTS="3") as running:
        for end in running.values():
            end.until(b"waiting\n")
        running["algo-2"].signal(signal.SIGKILL)
        done = running["algo-1"].end()

    assert done.status == 75
    assert "host algo-2 vanished" in str(done.failure)
    assert "after 1 restart" in str(done.failure)
    assert b"no restart: host algo-2 is gone" in done.stderr


def test_without_the_link_the_setting_is_ignored_and_that_is_said(hosts: Hosts) -> None:
    for base in hosts.bases.values():
        counts(base, FAILS_AT_3, ("algo-2", 0))

    done = hosts.run(TOOLKIT_RESTARTS="2", TOOLKIT_LINK="off")

    assert (done["algo-1"].status, done["algo-2"].status) == (0, 1)
    assert all(end.stderr.count(b"TOOLKIT_RESTARTS is ignored") == 1 for end in done.values())
