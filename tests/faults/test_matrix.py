"""The fault matrix, a round of it: every fault on two hosts, the telling ones also under other launchers and on four.

`scripts/faults` tries everything everywhere, several times, with the settings' own patience, and holds it to the
seconds it is allowed; here a machine may be slow.
"""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults import matrix
from tests.faults.__main__ import several
from tests.faults.hosts import Hosts
from tests.faults.launchers import Launcher
from tests.faults.table import BY_NAME, FAULTS, Fault

pytestmark = pytest.mark.faults
# Silence is noticed sooner here than by default, and a healthy job need not be long.
PATIENCE_S = 3.0
HEALTHY_STEPS = 100
SLACK_S = 15.0
# Of each launcher but script a few faults, with which every path ends the job at least once; the others are long.
TORCHRUN = ("rank-sigkill", "cut-off")
TORCHRUN_LONG = (
    "train-sigkill-leader",
    "hangs",
    "raises-slowly-pair",
    "raises-slowly",
    "raises-slowly-leader",
    "clock-back-pair",
    "exits-143",
    "fewer-steps",
    "other-size",
    "train-sigkill",
    "other-documents",
    "train-sigstop",
    "saves-all-twice",
)
MPI = ("raises", "rank-sigkill", "saves")
MPI_LONG = ("exits-3", "ends-early", "train-sigkill", "train-sigkill-leader", "saves-all-twice", "hangs")
SMDDP, SMDDP_LONG = ("rank-sigkill",), ("raises", "saves")
SMP, SMP_LONG = ("rank-sigkill-in-step",), ("raises-in-step",)
XLA, XLA_LONG = ("rank-sigkill",), ("raises",)
JAX, JAX_LONG = ("fewer-steps", "rank-sigkill"), ("exits-3",)
# Left to scripts/faults: tests/train/peers and tests/train/test_together.py have the same, in a second.
LONG = ("outage", "large-packets-lost", "train-restarted-leader", "silent-after-a-cause", "two-jobs")
FOUR = ("raises", "train-sigkill", "train-sigkill-leader", "train-sigterm", "saves-all", "cut-off", "absent")
FOUR_TORCHRUN = ("train-sigkill-leader", "raises-slowly")


def also_long(faults: tuple[str, ...], long: tuple[str, ...]) -> list[Any]:
    """Return the parameters of a test of *faults*, and of those that are *long*."""
    return [*faults, *(pytest.param(name, marks=pytest.mark.long) for name in long)]


def run(name: str, launcher: Launcher, count: int) -> tuple[str, ...]:
    """Return what went wrong, what the hosts printed last."""
    fault = BY_NAME[name]
    if reason := matrix.why_not(fault, launcher):
        pytest.skip(reason)
    if not fault.code and fault.steps > HEALTHY_STEPS and not fault.act:
        fault = msgspec.structs.replace(fault, steps=HEALTHY_STEPS)
    result = matrix.run(fault, launcher, count, patience_s=PATIENCE_S, slack_s=SLACK_S)
    return (*result.wrong, result.logs) if result.wrong else ()


@pytest.mark.parametrize("name", [f.name for f in FAULTS if "script" in f.launchers and f.name not in LONG])
def test_two_hosts_tell_the_truth(name: str) -> None:
    assert run(name, "script", 2) == ()


@pytest.mark.parametrize("name", FOUR)
def test_four_hosts_tell_the_truth(name: str) -> None:
    assert run(name, "script", 4) == ()


@pytest.mark.torch
@pytest.mark.parametrize("name", also_long(TORCHRUN, TORCHRUN_LONG))
def test_two_hosts_under_torchrun_tell_the_truth(name: str) -> None:
    assert run(name, "torchrun", 2) == ()


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("name", FOUR_TORCHRUN)
def test_four_hosts_under_torchrun_tell_the_truth(name: str) -> None:
    assert run(name, "torchrun", 4) == ()


@pytest.mark.mpi
@pytest.mark.parametrize("name", also_long(MPI, MPI_LONG))
def test_two_hosts_under_mpirun_tell_the_truth(name: str) -> None:
    assert run(name, "mpi", 2) == ()


@pytest.mark.torch
@pytest.mark.parametrize("name", also_long(SMDDP, SMDDP_LONG))
def test_two_hosts_of_smddp_tell_the_truth(name: str) -> None:
    assert run(name, "smddp", 2) == ()


@pytest.mark.torch
@pytest.mark.parametrize("name", also_long(SMP, SMP_LONG))
def test_two_hosts_of_a_partitioned_model_tell_the_truth(name: str) -> None:
    assert run(name, "smp", 2) == ()


@pytest.mark.xla
@pytest.mark.parametrize("name", also_long(XLA, XLA_LONG))
def test_two_hosts_of_pytorchxla_tell_the_truth(name: str) -> None:
    assert run(name, "pytorchxla", 2) == ()


@pytest.mark.jax
@pytest.mark.parametrize("name", also_long(JAX, JAX_LONG))
def test_two_hosts_of_jax_tell_the_truth(name: str) -> None:
    assert run(name, "jax", 2) == ()


def test_the_matrix_sees_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fault = Fault(
        name="wrong",
        text="a rank ends with 3, and everything else is expected",
        program="exits-3",
        code=4,
        says=("host {host}, nobody",),
        detect_s=-30.0,  # A busy machine is allowed more, but not as much.
        end_s=-30.0,
    )

    row = several(fault, "script", 2, 1, tmp_path)

    errors = capsys.readouterr().err
    assert (row.right, row.rounds, row.exit_codes) == (0, 1, "3 3")
    assert "algo-1 ended with 3, 4 was expected" in errors
    assert "algo-2 does not say 'host algo-2, nobody'" in errors
    assert "`toolkit why` does not say 'host algo-2, nobody'" in errors
    assert "algo-2 was named after" in errors
    assert "the last host ended after" in errors
    assert "ended with code 3" in (tmp_path / "wrong-script-2-1.log").read_text()


def test_what_is_left_over_is_counted_and_killed(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, 1, "script", environ={}, words={})
    name, _, value = hosts.marker.partition("=")
    with subprocess.Popen(("sleep", "600"), env={"PATH": os.defpath, name: value}) as forgotten, hosts:
        assert hosts.until(lambda: hosts.left() != set(), 10.0)  # The kernel shows its environment a moment after exec.

        left = hosts.sweep()

        assert left == {forgotten.pid}
        assert forgotten.wait() == -signal.SIGKILL
        assert hosts.sweep() == set()
