"""Models divided between ranks by TensorFlow 2.21, with Keras 2 and Keras 3, in the bed of scripts/beds/tensorflow."""

import re
import sys
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import PROGRAMS, ROOT
from tests.rank.modelparallel.tf.started import ranks
from tests.tensorflow.bed import BED, InBed, needs_bed

pytestmark = needs_bed
HOROVOD = BED.with_name("horovod-tf")


@pytest.mark.parametrize(
    ("keras", "cases"),
    [
        (3, ("short",)),
        pytest.param(2, (), marks=pytest.mark.long),
        pytest.param(3, (), marks=pytest.mark.long),
    ],
    ids=["3, short", "2", "3"],
)
def test_divided_models_have_the_gradients_of_the_whole_one_and_can_be_kept_and_resumed(
    tmp_path: Path, keras: int, cases: tuple[str, ...]
) -> None:
    """The program has the checks of the four ranks."""
    data, legacy = str(tmp_path / "data"), "1" if keras == 2 else "0"
    done = ranks(
        "smp_tensorflow.py", str(tmp_path), *cases, size=4, SM_OUTPUT_DATA_DIR=data, TF_USE_LEGACY_KERAS=legacy
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checked") == 4
    assert "topological order" not in done.stderr  # of graphs that TensorFlow could not optimize


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
def test_a_rank_that_fails_is_the_cause_and_the_others_end_with_it(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f"""
script = "{PROGRAMS / "smp_tensorflow_dies.py"}"
[distribution.mpi]
enabled = true
processes_per_host = 2
[distribution.smdistributed.modelparallel]
enabled = true
parameters = {{partitions = 2, microbatches = 2}}
"""
    )
    with InBed(tmp_path, str(job), TF_USE_LEGACY_KERAS="1") as run:
        assert run.end() == 1, run.console

    failure = (run.folder / "hosts/algo-1/opt/ml/output/failure").read_text()
    assert 'ErrorMessage "FileNotFoundError: no shard 7 (at ' in failure
    assert "rank 1" in failure
    assert run.all_ended_within(60, hosts=1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_a_rank_of_three_that_is_killed_inside_a_step_is_the_cause_and_the_others_end_with_it(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f"""
script = "{PROGRAMS / "smp_tensorflow_dies.py"}"
[hyperparameter]
killed = true
[distribution.mpi]
enabled = true
processes_per_host = 3
[distribution.smdistributed.modelparallel]
enabled = true
parameters = {{partitions = 3, microbatches = 2}}
"""
    )
    with InBed(tmp_path, str(job), TF_USE_LEGACY_KERAS="1") as run:
        assert run.end() == 128 + 9, run.console

    assert "killed inside a step" in run.console
    assert "rank 1" in (run.folder / "hosts/algo-1/opt/ml/output/failure").read_text()
    assert run.all_ended_within(60, hosts=1)


@pytest.mark.long
def test_three_partitions_have_the_gradients_of_the_whole_model(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    done = ranks("smp_tensorflow.py", str(tmp_path), "three", size=3, SM_OUTPUT_DATA_DIR=data, TF_USE_LEGACY_KERAS="1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checked") == 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11")
@pytest.mark.long
def test_the_digits_job_trains_two_replicas_of_two_partitions_on_two_hosts(tmp_path: Path) -> None:
    words = ("--hyperparameter", "epochs=1", "--hyperparameter", "train-images=2048")
    with InBed(tmp_path, str(ROOT / "entrypoints/smp_digits/job.toml"), *words) as job:
        assert job.end() == 0, job.console

    assert job.report["metrics"]["accuracy"] > 0.2
    assert {f"rank {rank}: partition {rank % 2}, replica {rank // 2}" for rank in range(4)} == set(
        re.findall(r"rank \d: partition \d, replica \d", job.console)
    )
    assert "model/saved_model.pb" in job.archive("model.tar.gz")


@pytest.mark.horovod
@pytest.mark.skipif(not (HOROVOD / ".ready").exists(), reason=f"{HOROVOD} is not ready: run scripts/beds/horovod")
def test_horovod_averages_gradients_over_replicas_where_it_is_installed() -> None:
    parameters = '{"partitions": 2, "microbatches": 2, "horovod": true}'
    done = ranks("smp_tensorflow_horovod.py", size=4, bed=HOROVOD, SM_HP_MP_PARAMETERS=parameters)

    assert done.returncode == 0, done.stdout + done.stderr
    told = sorted(re.findall(r"rank (\d): replica (\d) of 2", done.stdout))
    assert told == [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")]
