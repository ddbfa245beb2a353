"""A rank finds its position in the variables of its launcher."""

import pytest

from toolkit.rank.mesh.position import RankPosition, ignored_variables, missing_variables, rank_position

TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, RankPosition()),
        ({"RANK": "1"}, RankPosition()),
        ({"RANK": "one", "WORLD_SIZE": "2"}, RankPosition()),
        (TORCH, RankPosition(3, 4, 1, 2, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankPosition(1, 2, 0, 1, "torchrun")),
        (OPEN_MPI, RankPosition(5, 8, 1, 4, "mpirun")),
        (HYDRA, RankPosition(2, 3, 0, 1, "mpirun")),
        (TORCH | OPEN_MPI, RankPosition(3, 4, 1, 2, "torchrun")),
    ],
)
def test_a_rank_knows_its_place_from_its_launchers_variables(environ: dict[str, str], expected: RankPosition) -> None:
    assert rank_position(environ) == expected


def test_under_mpirun_torch_is_given_what_it_reads() -> None:
    missing = missing_variables(OPEN_MPI | {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"})

    assert missing == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_one_host_under_mpirun_meets_on_loopback() -> None:
    assert missing_variables(HYDRA).items() >= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7777"}.items()
    assert missing_variables(HYDRA | {"MASTER_PORT": "9"}).items() >= {"MASTER_ADDR": "127.0.0.1"}.items()
    assert "MASTER_PORT" not in missing_variables(HYDRA | {"MASTER_PORT": "9"})


@pytest.mark.parametrize("environ", [{}, TORCH, TORCH | OPEN_MPI])
def test_torchruns_ranks_need_nothing_more(environ: dict[str, str]) -> None:
    assert missing_variables(environ) == {}


def test_only_variables_that_mean_nothing_here_are_named() -> None:
    environ = {
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_PORT": "7592",
        "SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "8192",
        "SMDATAPARALLEL_LMC_ENABLE": "1",
        "SM_HOSTS": "[]",
    }

    assert ignored_variables(environ) == ("SMDATAPARALLEL_LMC_ENABLE", "SMDDP_AG_SORT_BUFFER_SIZE_BYTES")
