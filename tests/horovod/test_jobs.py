"""Horovod's scripts as jobs of the distribution `horovod`, with torch and with TensorFlow, on hosts of this machine."""

import json
import re
from pathlib import Path

import pytest

from tests.horovod.bed import TENSORFLOW, TORCH, WithTensorflow, WithTorch, lacks

LACKS = lacks(TORCH) or lacks(TENSORFLOW)
pytestmark = [pytest.mark.horovod, pytest.mark.skipif(bool(LACKS), reason=str(LACKS))]


FRAMEWORKS = [
    (WithTorch, "horovod_torch.py"),
    pytest.param(WithTensorflow, "horovod_tensorflow.py", marks=pytest.mark.long),
]


def words(hosts: int, per_host: int) -> tuple[str, ...]:
    size = ("--hosts", str(hosts), "--processes-per-host", str(per_host))
    # The ranks share this machine's cores: one that waits for the others lets them compute meanwhile.
    return ("--distribution", "horovod", *size, "--env", "OMPI_MCA_mpi_yield_when_idle=1")


@pytest.mark.parametrize(("framework", "program"), FRAMEWORKS)
def test_two_ranks_on_each_of_two_hosts_are_one_job(tmp_path: Path, framework: type[WithTorch], program: str) -> None:
    with framework(tmp_path, program, *words(2, 2)) as job:
        assert job.end() == 0, job.console

    for rank in range(4):
        (line,) = (
            line for line in job.console.splitlines() if f"rank {rank} of 4, local {rank % 2} of 2: sum 10" in line
        )
        assert f"algo-{rank // 2 + 1}" in line
    assert job.console.count("replicas identical: True") == 4
    assert job.codes == {"algo-1": 0, "algo-2": 0}


@pytest.mark.parametrize(
    ("framework", "program", "end", "code", "cause"),
    [
        pytest.param(WithTorch, "horovod_torch.py", "exit", 3, "", marks=pytest.mark.long),
        (WithTorch, "horovod_torch.py", "raise", 1, "the last rank has had enough"),
        pytest.param(WithTensorflow, "horovod_tensorflow.py", "exit", 3, "", marks=pytest.mark.long),
    ],
)
def test_the_code_and_the_cause_of_the_rank_that_failed_are_every_hosts(
    tmp_path: Path, framework: type[WithTorch], program: str, end: str, code: int, cause: str
) -> None:
    with framework(tmp_path, program, *words(2, 1), "--hyperparameter", f"end={end}") as job:
        assert job.end() == code, job.console

    assert job.codes == {"algo-1": code, "algo-2": code}
    for host in ("algo-1", "algo-2"):
        outcome = json.loads((job.folder / f"hosts/{host}/opt/ml/output/outcome.json").read_bytes())
        assert (outcome["cause_host"], outcome["cause"]["rank"], outcome["exit_code"]) == ("algo-2", 1, code), (
            job.console
        )
        assert cause in outcome["cause"]["message"]
        assert "Horovod has been shut down" not in outcome["cause"]["message"]


@pytest.mark.long
def test_keras_2_fits_where_tf_keras_stands_in_for_keras(tmp_path: Path) -> None:
    with WithTensorflow(tmp_path, "horovod_keras.py", *words(2, 1)) as job:
        assert job.end() == 0, job.console

    assert job.console.count("of 2 learns: True, replicas identical: True") == 2


@pytest.mark.long
def test_ranks_of_tensorflow_decide_together_whether_they_train_compiled(tmp_path: Path) -> None:
    with WithTensorflow(tmp_path, "horovod_compiled.py", *words(2, 1), "--env", "TOOLKIT_COMPILE=auto") as job:
        assert job.end() == 0, job.console

    decisions = re.findall(r"(runs natively|stays compiled): (the model's forward .* pairs of steps)", job.console)
    assert len(decisions) == 2
    assert decisions[0] == decisions[1]
    assert len(set(re.findall(r"rank \d loss=(\S+)", job.console))) == 1


@pytest.mark.long
def test_a_model_that_one_rank_of_tensorflow_cannot_compile_runs_natively_on_all(tmp_path: Path) -> None:
    arguments = (*words(2, 1), "--hyperparameter", "strings-on=1", "--hyperparameter", "steps=20")
    with WithTensorflow(tmp_path, "horovod_compiled.py", *arguments, "--env", "TOOLKIT_COMPILE=on") as job:
        assert job.end() == 0, job.console

    reasons = re.findall(r"runs natively: the model's forward and backward pass cannot be compiled: (.*)", job.console)
    assert len(reasons) == 2
    assert reasons.count("another rank cannot compile it") == 1
