"""`train` carries ranks' own work and requests for traces between the hosts' monitors (tests/train/peers: the
messages)."""

import struct
from pathlib import Path

import msgspec
import pytest

from tests.diagnosis.test_steps import job as evidence
from tests.diagnosis.test_steps import steps
from tests.train.launchers.jobs import job_of
from toolkit.diagnosis import exchange
from toolkit.diagnosis.slow_rank import own_work
from toolkit.job.job import Job
from toolkit.job.rank_work import MOST_RANKS_SENT, OTHERS, OWN, OthersWork, OwnWork, RankWork, TraceAsked
from toolkit.log import Log
from toolkit.status_pages import layout, pages
from toolkit.train.peers.frames import LARGEST_BYTES, decode, encode
from toolkit.train.peers.messages import HostOwnWork, TraceRanks
from toolkit.train.slow_ranks import SlowRanks
from toolkit.train.supervise.stop_request import STATUS_FOLDER

HOSTS = ("algo-1", "algo-2")
(WORK,) = own_work(evidence([steps(30, forward_s=0.05)])).values()


def of_host(folder: Path, current: str = "algo-1", hosts: tuple[str, ...] = HOSTS) -> SlowRanks:
    job: Job = job_of("torch_distributed", hosts=hosts, current=current)
    return SlowRanks(job, folder, Log())


def others(folder: Path) -> tuple[RankWork, ...]:
    return msgspec.json.decode((folder / OTHERS).read_bytes(), type=OthersWork).ranks


def test_what_the_monitor_wrote_is_sent_once_and_a_request_once(tmp_path: Path) -> None:
    ranks = of_host(tmp_path)
    trace_asked = TraceAsked(number=1, slow=3, healthy=0)
    assert ranks.take_due(10.0) == []
    exchange.write(tmp_path / OWN, OwnWork(ranks=(WORK,), asked=trace_asked))

    first = ranks.take_due(11.0)
    exchange.write(tmp_path / OWN, OwnWork(ranks=(WORK,), asked=trace_asked))
    second = ranks.take_due(12.0)

    assert first == [TraceRanks(request=trace_asked), HostOwnWork(ranks=(WORK,))]
    assert second == [HostOwnWork(ranks=(WORK,))]
    assert ranks.take_due(13.0) == []


def test_many_hosts_send_less_often_and_then_the_newest(tmp_path: Path) -> None:
    ranks = of_host(tmp_path, hosts=tuple(f"algo-{number}" for number in range(1, 2001)))
    sent = []
    for second in range(20, 40):
        exchange.write(tmp_path / OWN, OwnWork(ranks=(msgspec.structs.replace(WORK, steps=second),)))
        messages = [message for message in ranks.take_due(second) if isinstance(message, HostOwnWork)]
        sent += [(second, message.ranks[0].steps) for message in messages]

    assert sent == [(20, 20), (30, 30)]


def test_the_leaders_monitor_gets_the_ranks_of_other_hosts_under_the_senders_name(tmp_path: Path) -> None:
    ranks = of_host(tmp_path)
    ranks.take_work("algo-1", (WORK,))
    ranks.take_work("algo-2", (msgspec.structs.replace(WORK, host="algo-9", rank=1),))
    ranks.take_work("algo-2", (msgspec.structs.replace(WORK, rank=1, steps=40),))

    ranks.take_due(10.0)

    assert others(tmp_path) == (msgspec.structs.replace(WORK, host="algo-2", rank=1, steps=40),)


def test_another_attempt_knows_nothing_of_the_last_one(tmp_path: Path) -> None:
    ranks = of_host(tmp_path)
    exchange.write(tmp_path / OWN, OwnWork(ranks=(WORK,), asked=TraceAsked(number=1, slow=3, healthy=0)))
    ranks.take_work("algo-2", (WORK,))
    ranks.take_due(10.0)

    ranks.begin_attempt()

    assert list(tmp_path.iterdir()) == []
    assert ranks.take_due(20.0) == []
    exchange.write(tmp_path / OWN, OwnWork(asked=TraceAsked(number=1, slow=1, healthy=2)))
    assert ranks.take_due(30.0) == [TraceRanks(request=TraceAsked(number=1, slow=1, healthy=2))]


def test_a_request_reaches_the_page_that_the_ranks_read_with_the_number_of_the_job(tmp_path: Path) -> None:
    (tmp_path / STATUS_FOLDER).mkdir()
    pages.create_request_page(tmp_path / STATUS_FOLDER)

    of_host(tmp_path).trace(TraceAsked(number=2, slow=3, healthy=0))

    page = (tmp_path / STATUS_FOLDER / layout.PROFILE_NAME).read_bytes()
    body: struct.Struct = layout.PROFILE_BODY
    assert body.unpack(page[: body.size]) == (1, -2, 5, 3, 0, 1)


def test_without_a_page_a_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    of_host(tmp_path).trace(TraceAsked(number=1, slow=3, healthy=0))

    assert "ranks 3 and 0 were not asked for a trace: No such file or directory" in capfd.readouterr().err


def test_of_too_many_ranks_those_with_the_least_and_the_most_work_fit_into_a_message(tmp_path: Path) -> None:
    of_this = of_host(tmp_path)
    ranks = tuple(
        msgspec.structs.replace(WORK, rank=number, forward_s=number / 7 + 1e-7, host="h" * 200)
        for number in range(1000)
    )
    exchange.write(tmp_path / OWN, OwnWork(ranks=ranks))

    (sent,) = of_this.take_due(10.0)

    assert isinstance(sent, HostOwnWork)
    ranks_sent = {work.rank for work in sent.ranks}
    assert len(ranks_sent) == MOST_RANKS_SENT
    assert {0, 999} <= ranks_sent and 500 not in ranks_sent
    assert len(encode(sent)) < LARGEST_BYTES
    assert decode(encode(sent), "up") == sent
