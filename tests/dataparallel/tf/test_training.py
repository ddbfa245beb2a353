"""The old library's TensorFlow half in two real ranks under mpirun, in the bed with TensorFlow."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolkit.launchers.compat import FOLDER
from toolkit.launchers.environment import HOOK

ROOT = Path(__file__).parents[3]
BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds") / "tensorflow"
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason="needs the test bed of scripts/beds/tensorflow"),
]
PROGRAM = ROOT / "tests/programs/uses_smddp_tf.py"
WITHIN_S = 400
NEAR = 1e-5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Return what both ranks said, in the order of ranks, and what came on stderr."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "OMPI_"))},
        "PATH": f"{BED / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": f"{HOOK}:{ROOT}",  # This tree's toolkit, wherever the bed was made.
        "TOOLKIT_COMPAT_PATH": str(FOLDER / "smddp"),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    folder = tmp_path_factory.mktemp("tf")
    outputs = [folder / "0.json", folder / "1.json"]
    program = f'exec python {PROGRAM} >{folder}/"$OMPI_COMM_WORLD_RANK".json'
    argv = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", "sh", "-c", program]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(file.read_text()) for file in outputs], done.stderr


def test_ranks_know_their_numbers_and_init_is_called_once(ran: tuple[list[dict[str, Any]], str]) -> None:
    for rank, said in enumerate(ran[0]):
        assert said["numbers"] == [rank, 2, rank, 2, rank]
        assert said["again"] == ("init() called more than once. smdistributed.dataparallel is already initialized.")
        assert "expected init() before this call" in said["too early"]


def test_tensors_are_reduced_and_told(ran: tuple[list[dict[str, Any]], str]) -> None:
    for said in ran[0]:
        assert said["reduced"] == {"average": [1.5, 3], "sum": [3, 6], "min": [1, 2], "max": [2, 4]}
        assert said["gradient"] == [1.5, 3]
        assert said["types"] == [[3, 6]] * 5
        assert said["half"] == ["<dtype: 'float32'>", [1.5, 3]]
        assert said["told"] == [2, 4]
        assert (said["empty"], said["overlap"]) == ([0], True)


def test_large_tensors_have_the_same_results_and_the_given_ones_stay(ran: tuple[list[dict[str, Any]], str]) -> None:
    for said in ran[0]:
        assert said["large"] == {
            **dict.fromkeys(("float32", "float64", "float16"), [[1.5], [3], [2]] * 2),
            "int32": [[1], [3], [2]] * 2,
        }
        assert said["unchanged"]
    assert ran[1].count("(ms, it/MPI: 64 KiB ") == 1


@pytest.mark.parametrize("how", ["tape", "fit"])
def test_two_ranks_with_half_the_batch_each_train_as_one_with_all_of_it(
    ran: tuple[list[dict[str, Any]], str], how: str
) -> None:
    for said in ran[0]:
        loss, weight = said[how]
        assert (loss < NEAR, weight < NEAR) == (True, True)


def test_replicas_are_equal_to_the_last_bit(ran: tuple[list[dict[str, Any]], str]) -> None:
    first, second = ran[0]

    assert first["weights"] == second["weights"]
    assert first["optimizer"] == "SGD"


def test_sparse_gradients_become_dense_and_missing_ones_stay_missing(ran: tuple[list[dict[str, Any]], str]) -> None:
    for said in ran[0]:
        assert said["sparse"] == [[0.5, 0.5], [0.5, 0.5], [0, 0], [1, 1]]
        assert said["none"]


def test_tensorflow_1s_sessions_are_served(ran: tuple[list[dict[str, Any]], str]) -> None:
    for said in ran[0]:
        assert said["session"] == [1.0, 1.5]


def test_rank_0_says_what_ran(ran: tuple[list[dict[str, Any]], str]) -> None:
    assert ran[1].count("[toolkit] smddp: 2 ranks; all-reduce: ") == 1
