"""A rank's state is reported beside its stack."""

import os
from pathlib import Path

import pytest

from toolkit.train.supervise import stacks
from toolkit.train.supervise.activity import STATES
from toolkit.train.supervise.stacks import StackDump

DISK, DEBUGGED, STOPPED = STATES[b"D"], STATES[b"t"], STATES[b"T"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", DISK, ""),
        (DISK, "", ""),
        ("", DEBUGGED, ""),
        (DISK, DISK, DISK),
        (DEBUGGED, DEBUGGED, DEBUGGED),
        ("", STOPPED, STOPPED),
        (STOPPED, "", ""),
    ],
)
def test_a_state_that_passes_is_no_reason_for_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, expected: str
) -> None:
    """Both ranks of a job waited for a busy disk at the same moment, and both were accused."""
    states = iter((first, second))
    monkeypatch.setattr(stacks, "unusual_state", lambda _pid: next(states))
    dump = StackDump(
        {"rank 1": os.getpid()},
        tmp_path,
        "algo-1",
        environ={"PATH": ""},
        prepared=tmp_path / "none",
        prctl=lambda *_: 0,
    )

    dump.collect()

    (rank,) = dump.stuck()
    assert rank.process_state == expected
