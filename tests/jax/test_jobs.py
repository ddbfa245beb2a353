"""JAX 0.10 itself on CPU, on one, two and three hosts: what ranks compute, how they end, and who is named."""

import re
import signal
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT
from tests.jax.bed import InBed, needs_bed

pytestmark = needs_bed
DIGITS = str(ROOT / "entrypoints/jax_digits/job.toml")
JAX = ("--distribution", "jax")
# The sums of a batch are rounded in another order on two hosts.
TOLERANCE = 1e-4


def losses(console: str) -> dict[int, float]:
    """Return the loss of each epoch."""
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch=(\d+) loss=([\d.]+)", console)}


def test_two_hosts_train_the_digits_to_one_hosts_losses(tmp_path: Path) -> None:
    losses_by_hosts = {}
    for hosts in (1, 2):
        (tmp_path / str(hosts)).mkdir()
        with InBed(tmp_path / str(hosts), DIGITS, "--hosts", str(hosts), "--hyperparameter", "epochs=4") as job:
            assert job.end() == 0, job.console
        losses_by_hosts[hosts] = losses(job.console)
        assert f"of {hosts}, {hosts} devices" in job.console
        assert "model.npz" in job.archive("model.tar.gz")

    assert len(losses_by_hosts[2]) == 4
    assert losses_by_hosts[2] == pytest.approx(losses_by_hosts[1], rel=TOLERANCE)
    assert losses_by_hosts[2][4] < 0.5 * losses_by_hosts[2][1]


@pytest.mark.long
def test_a_stop_reaches_the_script_on_both_hosts(tmp_path: Path) -> None:
    with InBed(tmp_path, DIGITS, "--hyperparameter", "epochs=5000") as job:
        job.until("epoch=2 ")
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert "stopped on request" in job.console
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_three_hosts_of_two_ranks_name_the_one_that_left_first(tmp_path: Path) -> None:
    words = ("--hosts", "3", "--processes-per-host", "2", "--hyperparameter", "ends-on=3")
    with InBed(tmp_path, "jax_steps.py", *JAX, *words, "--hyperparameter", "ends=exits") as job:
        assert job.end() == 1, job.console

    assert "[algo-3 rank 5] rank 5 is process 5 of 6" in job.console
    for host in ("algo-1", "algo-2", "algo-3"):
        failure = (job.folder / f"hosts/{host}/opt/ml/output/failure").read_text()
        assert 'ErrorMessage "rank 3 of host algo-2 ended with 0, ' in failure
    assert job.all_ended_within(60, hosts=3)


@pytest.mark.parametrize(("hosts", "per_host", "ends_on"), [pytest.param(1, 2, 1, marks=pytest.mark.long), (2, 1, 0)])
def test_a_rank_that_ends_before_the_others_have_met_it_is_named_soon(
    tmp_path: Path, hosts: int, per_host: int, ends_on: int
) -> None:
    """Also the first rank, where JAX's coordinator would have been. JAX itself waits for 300 s."""
    words = ("--hosts", str(hosts), "--processes-per-host", str(per_host), "--hyperparameter", f"ends-on={ends_on}")
    with InBed(tmp_path, "jax_steps.py", *JAX, *words, "--hyperparameter", "ends=before") as job:
        assert job.end() == 1, job.console

    for host in range(1, hosts + 1):
        failure = (job.folder / f"hosts/algo-{host}/opt/ml/output/failure").read_text()
        assert f'ErrorMessage "rank {ends_on} of host algo-{1 if hosts == 1 else ends_on + 1} ended with 0, ' in failure
        assert "the others waited for it in jax.distributed.initialize" in failure
    assert "jax_steps.py" in job.console  # The traceback names the call of the script.
    assert job.all_ended_within(60, hosts=hosts)


@pytest.mark.long
def test_ranks_that_never_meet_may_end_one_after_the_other(tmp_path: Path) -> None:
    words = ("--hosts", "2", "--processes-per-host", "2", "--hyperparameter", "ends-on=1")
    with InBed(tmp_path, "jax_steps.py", *JAX, *words, "--hyperparameter", "ends=alone") as job:
        assert job.end() == 0, job.console

    assert {f"rank {rank} is done" in job.console for rank in range(4)} == {True}


@pytest.mark.parametrize("ends", ["own-hook", pytest.param("leaves", marks=pytest.mark.long)])
def test_an_exception_ends_the_job_at_once(tmp_path: Path, ends: str) -> None:
    """Also of a script with an excepthook of its own, and of one that shuts JAX down on its way out."""
    words = ("--processes-per-host", "2", "--hyperparameter", "ends-on=0", "--hyperparameter", f"ends={ends}")
    with InBed(tmp_path, "jax_steps.py", *JAX, *words) as job:
        assert job.end() == 1, job.console

    failure = (job.folder / "hosts/algo-1/opt/ml/output/failure").read_text()
    assert 'ErrorMessage "ValueError: boom' in failure
    assert "host algo-1, rank 0 (local rank 0)" in failure


def test_arguments_of_the_script_win_and_what_it_survives_does_not_end_it(tmp_path: Path) -> None:
    """A sys.exit that the script catches, and an exception of a thread, are not its end."""
    words = ("--processes-per-host", "2", "--hyperparameter", "explicit=yes", "--hyperparameter", "ends-on=0")
    with InBed(tmp_path, "jax_steps.py", *JAX, *words, "--hyperparameter", "ends=survives") as job:
        assert job.end() == 0, job.console

    assert "rank 0 is process 1 of 2" in job.console
    assert "the script gives jax.distributed.initialize process_id=1, the job has 0" in job.console
    assert "went on" in job.console
    assert {f"rank {rank} is done" in job.console for rank in (0, 1)} == {True}


@pytest.mark.long
def test_without_the_hook_and_the_shim_the_script_gives_what_jax_needs(tmp_path: Path) -> None:
    words = ("--processes-per-host", "2", "--hyperparameter", "explicit=yes")
    environ = {"TOOLKIT_RANK_HOOK": "off", "TOOLKIT_RANK_SHIM": "off"}
    with InBed(tmp_path, "jax_steps.py", *JAX, *words, **environ) as job:
        assert job.end() == 0, job.console

    assert {f"rank {rank} is done" in job.console for rank in (0, 1)} == {True}
