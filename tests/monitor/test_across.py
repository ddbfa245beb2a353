"""The files by which a monitor and `train` carry ranks' own work between hosts."""

from pathlib import Path

import msgspec
import pytest

from tests.diagnosis.test_steps import job, steps
from toolkit.diagnosis import exchange
from toolkit.diagnosis.slow_rank import own_work
from toolkit.job.rank_work import OTHERS, OWN, OthersWork, OwnWork, TraceAsked
from toolkit.monitor.across import Across

WORK = own_work(job([steps(30, forward_s=0.05)]))


def read_own_work(folder: Path) -> OwnWork:
    return msgspec.json.decode((folder / OWN).read_bytes(), type=OwnWork)


def test_a_request_for_a_trace_stands_beside_the_newest_own_work(tmp_path: Path) -> None:
    across = Across(tmp_path, 100.0)
    across.own(WORK)
    across.ask(3, 0)
    across.own({})
    across.ask(3, 1)

    assert read_own_work(tmp_path) == OwnWork(ranks=(), asked=TraceAsked(number=2, slow=3, healthy=1))


def test_the_own_work_is_written_as_often_as_a_rule_looks(tmp_path: Path) -> None:
    across = Across(tmp_path, 100.0)
    seconds = [number for number in range(1, 1000) if across.is_due(100.0 + number)]

    assert seconds[:4] == [1, 6, 11, 16]
    assert seconds[-1] - seconds[-2] == 60


def test_what_other_hosts_told_is_read_once(tmp_path: Path) -> None:
    across = Across(tmp_path, 100.0)
    assert across.others() is None
    exchange.write(tmp_path / OTHERS, OthersWork(ranks=tuple(WORK.values())))

    assert across.others() == WORK
    assert across.others() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"ranks": [{"rank": -1}]}', b"\xff"])
def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OTHERS).write_bytes(content)

    assert Across(tmp_path, 100.0).others() is None
