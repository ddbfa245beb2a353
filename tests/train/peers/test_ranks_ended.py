"""Hosts whose services wait for the scripts of all (Phase.serves_all): who says what, in a job that nobody stops."""

from tests.train.peers.simulated import Job
from toolkit.job.events import AllRanksEnded, LeaderDone
from toolkit.train.peers.messages import RanksEnded


def test_every_host_hears_once_that_the_last_script_has_ended() -> None:
    job = Job(3)
    job.ready()
    job.at(6.0, lambda: job.tell("algo-1", LeaderDone()))
    for at_s, name in ((5.0, "algo-2"), (6.0, "algo-1"), (7.0, "algo-3")):
        job.at(at_s, lambda name=name: job.tell(name, RanksEnded()))  # type: ignore[misc]
    for name in job.names:
        job.at(8.0, lambda name=name: job.end(name, 0))  # type: ignore[misc]

    job.play()

    heard = [host.did(AllRanksEnded) for host in job.hosts.values()]
    assert all(len(times) == 1 and 7.0 <= times[0] < 7.3 for times in heard)
    assert all(6.0 <= host.did(LeaderDone)[0] < 6.3 for name, host in job.hosts.items() if name != "algo-1")
    assert {code for _, code in job.verdicts} == {0}


def test_a_host_that_has_ended_without_resting_holds_up_nobody() -> None:
    job = Job(3)
    job.ready()
    for name in ("algo-1", "algo-2"):
        job.at(5.0, lambda name=name: job.tell(name, RanksEnded()))  # type: ignore[misc]
        job.at(8.0, lambda name=name: job.end(name, 0))  # type: ignore[misc]
    job.at(6.0, lambda: job.end("algo-3", 0))

    job.play()

    assert 6.0 <= job.hosts["algo-2"].did(AllRanksEnded)[0] < 6.3


def test_nobody_rests_in_a_job_where_nobody_waits() -> None:
    job = Job(2)
    job.ready()
    for name in job.names:
        job.at(5.0, lambda name=name: job.end(name, 0))  # type: ignore[misc]

    job.play()

    assert not any(host.did(AllRanksEnded) for host in job.hosts.values())
