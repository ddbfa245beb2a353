"""The old library's TensorFlow half in two real ranks under mpirun, in the bed with TensorFlow."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolkit.train.launchers.compat import FOLDER
from toolkit.train.launchers.environment import HOOK

ROOT = Path(__file__).parents[4]
BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds") / "tensorflow"
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason="needs the test bed of scripts/beds/tensorflow"),
]
PROGRAM = ROOT / "tests/programs/uses_smddp_tf.py"
WITHIN_S = 400
NEAR = 1e-5
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2")


def started(*argv: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run *argv*, with *more* variables, where the bed's Python finds the old library."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "OMPI_"))},
        "PATH": f"{BED / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": f"{HOOK}:{ROOT}",  # This tree's toolkit, wherever the bed was made.
        "TOOLKIT_COMPAT_PATH": str(FOLDER / "smddp"),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }
    return subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False, start_new_session=True
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Return what both ranks said, in the order of ranks, and what came on stderr."""
    folder = tmp_path_factory.mktemp("tf")
    outputs = [folder / "0.json", folder / "1.json"]
    program = f'exec python {PROGRAM} >{folder}/"$OMPI_COMM_WORLD_RANK".json'
    done = started(*MPIRUN, "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    return [json.loads(file.read_text()) for file in outputs], done.stderr


def test_ranks_know_their_numbers_and_init_is_called_once(ran: tuple[list[dict[str, Any]], str]) -> None:
    for rank, result in enumerate(ran[0]):
        assert result["numbers"] == [rank, 2, rank, 2, rank]
        assert result["again"][0] == "init() called more than once. smdistributed.dataparallel is already initialized."
        assert "expected init() before this call" in result["too early"]


def test_tensors_are_reduced_and_told(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        assert result["reduced"] == {"average": [1.5, 3], "sum": [3, 6], "min": [1, 2], "max": [2, 4]}
        assert result["gradient"] == [1.5, 3]
        assert result["types"] == [[3, 6]] * 5
        assert result["half"] == ["<dtype: 'float32'>", [1.5, 3]]
        assert result["told"] == [2, 4]
        assert (result["empty"], result["overlap"]) == ([0], True)


def test_large_tensors_have_the_same_results_and_the_given_ones_stay(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        assert result["large"] == {
            **dict.fromkeys(("float32", "float64", "float16"), [[1.5], [3], [2]] * 2),
            "int32": [[3], [2]] * 2,
        }
        assert result["unchanged"]
    assert ran[1].count("(ms, shared memory/MPI: 64 KiB ") == 2  # Once for each init().


@pytest.mark.parametrize("how", ["tape", "fit"])
def test_two_ranks_with_half_the_batch_each_train_as_one_with_all_of_it(
    ran: tuple[list[dict[str, Any]], str], how: str
) -> None:
    for result in ran[0]:
        loss, weight = result[how]
        assert (loss < NEAR, weight < NEAR) == (True, True)


def test_replicas_are_equal_to_the_last_bit(ran: tuple[list[dict[str, Any]], str]) -> None:
    first, second = ran[0]

    assert first["weights"] == second["weights"]
    assert first["optimizer"] == "SGD"
    assert first["state"] == [1, True]


def test_a_scaled_loss_that_overflows_on_one_rank_leaves_the_step_out_on_all(
    ran: tuple[list[dict[str, Any]], str],
) -> None:
    for result in ran[0]:
        assert result["scaled"] == [[10, 2**14], [8.5, 2**14]]


def test_a_rank_with_one_step_more_is_named_when_another_leaves(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        both = "shutdown() or the end of the program on rank 0; an all-reduce (average) on rank 1. Let each rank take"
        assert both in result["one step more"]


def test_a_function_that_was_traced_before_a_second_init_uses_the_new_connection(
    ran: tuple[list[dict[str, Any]], str],
) -> None:
    for result in ran[0]:
        assert "expected init() before this call" in result["between"]
        assert result["again"][1] == [1.5]


def test_sparse_gradients_become_dense_and_missing_ones_stay_missing(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        assert result["sparse"] == [[0.5, 0.5], [0.5, 0.5], [0, 0], [1, 1]]
        assert result["none"]


def test_complex_tensors_are_added_and_averaged(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        assert result["complex"] == [[[1.5, -1.5], [3, -3]], [[3, -3], [6, -6]]]


def test_what_has_no_reduction_is_refused_with_the_type_and_a_cure(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        kinds = (
            "int32 has no average",
            "bool has no sum",
            "bool has no max",
            "complex64 has no min",
            "string has no sum",
        )
        assert all(kind in text for kind, text in zip(kinds, result["no average"], strict=False))
        assert "op: expected one of 'average', 'sum', 'min', 'max', got 'mean'" in result["no average"][-1]
        assert "root_rank: expected a rank from 0 to 1, got 2" in result["no broadcast"][0]
        assert "root_rank: expected a rank from 0 to 1, got '0'" in result["no broadcast"][1]
        assert "a tensor of type string has no broadcast" in result["no broadcast"][2]


def test_ranks_whose_tensors_differ_get_an_error_that_names_the_tensor_and_the_ranks(
    ran: tuple[list[dict[str, Any]], str],
) -> None:
    for result in ran[0]:
        differ = result["differ"]
        missing = "tensor 0 (u): float32 (1,) on rank 0; none on rank 1. Use the variable in the loss of each rank"
        assert missing in differ["tape"]
        assert missing in differ["in a function"]
        assert "none on rank 0; float32 (1,) on rank 1" in differ["all missing"]
        assert "1 tensors on rank 0; 2 tensors on rank 1" in differ["optimizer"]
        assert "float32 (1,) on rank 0; float32 (2,) on rank 1" in differ["shapes"]
        assert "float32 (2,) on rank 0; float64 (2,) on rank 1" in differ["types"]
        assert "an all-reduce (sum) on rank 0; an all-reduce (max) on rank 1" in differ["operations"]
        assert "a broadcast from rank 0 on rank 0; an all-reduce (average) on rank 1" in differ["calls"]
        assert "1 tensors on rank 0; 2 tensors on rank 1" in differ["broadcast"]
        assert "a broadcast from rank 0 on rank 0; a broadcast from rank 1 on rank 1" in differ["roots"]
        assert result["left alone"] == [[10], [100]]
        assert result["goes on"] == [1.5, 3]


def test_tensorflow_1s_sessions_are_served(ran: tuple[list[dict[str, Any]], str]) -> None:
    for result in ran[0]:
        assert result["session"] == [1.0, 1.5]


def test_rank_0_says_what_ran(ran: tuple[list[dict[str, Any]], str]) -> None:
    assert ran[1].count("[toolkit] smddp: 2 ranks; all-reduce: ") == 2  # Once for each init().


JOINS = (
    "import sys; from mpi4py import MPI; from toolkit.rank.dataparallel.tf.api import Library as L; l = L(); l.init();"
)


@pytest.mark.parametrize(
    ("through", "code", "status"),
    [
        ((), "1 / l.rank()", 1),
        (("-m", "mpi4py"), "1 / l.rank()", 1),
        (("-m", "mpi4py"), "MPI.COMM_WORLD.Barrier() if l.rank() else sys.exit(3)", 3),
    ],
    ids=["exception", "exception, mpi4py", "exit, mpi4py"],
)
def test_a_rank_that_fails_ends_the_job_though_the_others_wait_elsewhere(
    through: tuple[str, ...], code: str, status: int
) -> None:
    """At their end, when rank 0 alone saves the model and cannot; or in a barrier of their own."""
    done = started(*MPIRUN, "python", *through, "-c", JOINS + code)

    assert done.returncode == status, done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (status == 1)
    assert "expected the same call" not in done.stderr


@pytest.mark.long
def test_an_optimizer_of_keras_3_is_wrapped_beside_keras_2() -> None:
    """TF_USE_LEGACY_KERAS makes tf.keras Keras 2, which has no such LossScaleOptimizer."""
    code = (
        "import keras, smdistributed.dataparallel.tensorflow as sdp; sdp.init();"
        "print(type(sdp.DistributedOptimizer(keras.optimizers.SGD())).__name__)"
    )

    done = started("python", "-c", code, TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

    assert (done.returncode, done.stdout) == (0, "SGD\n"), done.stderr
