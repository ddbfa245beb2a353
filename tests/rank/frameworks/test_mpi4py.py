"""mpi4py's decision to abort all ranks is noted, and stays its own."""

from types import ModuleType

import pytest

from toolkit.rank.frameworks import mpi4py


def test_an_abort_is_noted_and_decided_by_mpi4py(capsys: pytest.CaptureFixture[str]) -> None:
    decided: list[int] = []
    noted: list[int] = []
    module = ModuleType("mpi4py.MPI")
    vars(module)["_set_abort_status"] = decided.append

    mpi4py.watch_abort_status(module, noted.append)
    vars(module)["_set_abort_status"](3)

    assert noted == decided == [3]
    mpi4py.watch_abort_status(ModuleType("mpi4py.MPI"), noted.append)
    assert "mpi4py.MPI has no _set_abort_status: a rank that fails waits" in capsys.readouterr().err
