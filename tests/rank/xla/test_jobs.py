"""torch_xla 2.9 itself on CPU: one process, two on a host, two hosts; what they compute, how they stop and fail."""

import re
import signal
from pathlib import Path

import pytest

from tests.rank.xla.bed import InBed, needs_bed

pytestmark = needs_bed
XLA = ("--distribution", "pytorchxla")
TWO_HOSTS = ("--hosts", "2", *XLA)


def weights(console: str) -> dict[str, str]:
    """Return each rank's fingerprint of its weights, by "rank of size"."""
    return dict(re.findall(r"rank=(\d+ of=\d+) weights=([0-9a-f]{64})", console))


def test_every_collective_is_true_between_two_processes_and_replicas_are_bit_equal(tmp_path: Path) -> None:
    """Through xmp.spawn in the script's main block, with arguments of its own and processes it does not get."""
    with InBed(
        tmp_path, "xla_collectives.py", *XLA, "--processes-per-host", "2", "--hyperparameter", "epochs=3"
    ) as job:
        assert job.end() == 0, job.console

    assert "rank 0 is right" in job.console
    assert "rank 1 is right" in job.console
    assert "Warning: Overriding" not in job.console


def test_an_old_script_trains_on_two_hosts_as_one(tmp_path: Path) -> None:
    with InBed(tmp_path, "xla_digits.py", *TWO_HOSTS, "--hyperparameter", "epochs=3") as job:
        assert job.end() == 0, job.console

    by_rank = weights(job.console)
    assert set(by_rank) == {"0 of=2", "1 of=2"}
    assert len(set(by_rank.values())) == 1
    assert float(re.findall(r"accuracy=([\d.]+)", job.console)[-1]) > 0.9
    assert "model.pt" in job.archive("model.tar.gz")


@pytest.mark.long
def test_one_process_is_torch_xlas_own_also_by_the_compilers_launcher_in_a_shell_script(tmp_path: Path) -> None:
    with InBed(tmp_path, "xla_spawn.sh", *XLA, "--hyperparameter", "epochs=1") as job:
        assert job.end() == 0, job.console

    assert list(weights(job.console)) == ["0 of=1"]


@pytest.mark.long
def test_the_rank_that_fails_is_the_cause_on_both_hosts(tmp_path: Path) -> None:
    words = ("--hyperparameter", "epochs=50", "--hyperparameter", "fails-on=1")
    with InBed(tmp_path, "xla_digits.py", *TWO_HOSTS, *words) as job:
        assert job.end() == 1, job.console

    assert job.codes == {"algo-1": 1, "algo-2": 1}
    for host in ("algo-1", "algo-2"):
        failure = (job.folder / f"hosts/{host}/opt/ml/output/failure").read_text()
        assert 'ErrorMessage "FileNotFoundError: no shard 7 (at ' in failure
        assert "xla_digits.py:" in failure
        assert "host algo-2, rank 1" in failure
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_a_stop_reaches_the_script_on_both_hosts(tmp_path: Path) -> None:
    with InBed(tmp_path, "xla_digits.py", *TWO_HOSTS, "--hyperparameter", "epochs=5000") as job:
        job.until("epoch=2 ")
        job.signal(signal.SIGTERM)
        assert job.end() == 143, job.console

    assert job.codes == {"algo-1": 0, "algo-2": 0}
    assert "stopped on request" in job.console
    assert job.all_ended_within(60, hosts=2)


@pytest.mark.long
def test_ranks_that_each_believe_they_are_alone_are_stopped_with_that_cause(tmp_path: Path) -> None:
    """Under torchrun as such, where torch_xla on CPU says rank 0 of 1 to every rank."""
    words = ("--distribution", "torch_distributed", "--processes-per-host", "2")
    with InBed(tmp_path, "xla_alone.py", *words) as job:
        assert job.end() == 1, job.console

    failure = (job.folder / "hosts/algo-1/opt/ml/output/failure").read_text()
    assert "torch_xla takes this rank to be alone (torch_xla.runtime." in failure
    assert "distribution pytorchxla" in failure
    assert "trained" not in job.console
