"""NumPy arrays through shared memory, in real ranks under mpirun in the bed with TensorFlow (without TensorFlow)."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolkit.train.verdict.collateral import is_collateral

ROOT = Path(__file__).parents[4]
BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds") / "tensorflow"
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason="needs the test bed of scripts/beds/tensorflow"),
]
PROGRAM = ROOT / "tests/programs/reduces_numpy.py"
WITHIN_S = 120


def run(folder: Path, scene: str, ranks: int) -> tuple[int, list[dict[str, Any]], str]:
    """Return mpirun's exit code, what each rank printed, and what came on stderr."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOOLKIT_", "OMPI_"))},
        "PATH": f"{BED / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    program = f'exec python {PROGRAM} {scene} >{folder}/"$OMPI_COMM_WORLD_RANK".json'
    argv = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), "sh", "-c", program]
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False, start_new_session=True
    )
    texts = [(folder / f"{rank}.json").read_text() for rank in range(ranks)]
    return done.returncode, [json.loads(text) if text else {} for text in texts], done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_arrays_of_all_sizes_are_summed_into_others_alike_on_all_ranks(tmp_path: Path, ranks: int) -> None:
    code, results, errors = run(tmp_path, "reduces", ranks)

    assert code == 0, errors
    for result in results:
        for name in ("f4 one", "f4 many", "f8 one", "f8 many"):
            for took, error, alike, unchanged in result[name]:
                assert (took, alike, unchanged) == (True, True, True), name
                assert error < (1e-5 if name.startswith("f4") else 1e-14), name
        assert (result["small"], result["integers"], result["paths"]) == (False, False, ["shared memory"])
    assert errors.count("all-reduce: shared memory from 64 KiB (ms, shared memory/MPI: 64 KiB ") == 1


def test_what_is_slower_than_mpi_is_left_to_mpi(tmp_path: Path) -> None:
    code, results, errors = run(tmp_path, "slower", 2)

    assert code == 0, errors
    assert results == [{"first": False, "second": False}] * 2
    assert errors.count("all-reduce: shared memory is not faster (ms, shared memory/MPI: ") == 1


def test_ranks_with_arrays_of_other_sizes_name_both(tmp_path: Path) -> None:
    code, results, errors = run(tmp_path, "sizes", 2)

    assert code == 0, errors
    # The first to see it may be gone before the other one looks.
    assert any("SizeMismatch: an all-reduce of 40" in result["error"] for result in results), results


def test_peers_of_a_rank_that_left_name_it_at_once(tmp_path: Path) -> None:
    code, results, errors = run(tmp_path, "left", 2)

    assert code == 0, errors
    assert results[0]["error"].startswith(
        "PeerLost: Connection closed by peer: rank 1 of this host ended or left in an all-"
    )
    assert is_collateral(results[0]["error"])
