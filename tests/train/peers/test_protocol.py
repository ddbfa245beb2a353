"""The protocol: histories of two to fifty hosts over networks of every kind (simulated.py)."""

import random
import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.train.peers.simulated import TIMES, Job, started, stops
from toolkit.job.cause import Cause, Evidence
from toolkit.job.events import (
    AllRanksEnded,
    AllReady,
    DaemonEnded,
    Hang,
    HangNoticed,
    JobEnded,
    Launch,
    LeaderDone,
    PeerFailed,
    RankDone,
    Stop,
    StopStep,
)
from toolkit.job.outcome import EarlyExit
from toolkit.job.rank_work import RankWork, TraceAsked
from toolkit.job.stuck import StuckRank
from toolkit.train.peers.follower import REFUSED, Follower
from toolkit.train.peers.frames import encode
from toolkit.train.peers.leader import Leader
from toolkit.train.peers.lookup import Address
from toolkit.train.peers.members import Members
from toolkit.train.peers.messages import (
    Bye,
    CommonStep,
    EndReport,
    Failing,
    Go,
    HostEnded,
    HostOwnWork,
    Idle,
    NotReady,
    OwnFailure,
    Ping,
    RanksEnded,
    Ready,
    TraceRanks,
    UnfinalizedRank,
    Verdict,
    Welcome,
)
from toolkit.train.peers.protocol import LINGER_S, LogLine, RanksWork, Send, Timeouts
from toolkit.train.peers.reports import (
    HANG,
    choose_cause,
    cut_for_hosts,
    describe_failure,
    report_vanished,
    shorten,
    with_cause,
)
from toolkit.train.peers.route import RESOLVE_EVERY_S, Route

SIZES = [2, 3, 7, 50]


def ends_well(job: Job, after_s: float = 20.0) -> None:
    for name in job.names:
        job.at(after_s + job.random.random() * 5, lambda name=name: job.end(name))  # type: ignore[misc]


def left(job: Job, name: str, at_s: float) -> EarlyExit:
    """Return what host *name* tells of a rank that ended with 0 at *at_s*."""
    return EarlyExit(host=name, process="rank 7", pid=7, rank=7, at_ns=job.ns(job.began_s + at_s))


def loses(job: Job, name: str, at_s: float, early: EarlyExit | None = None, code: int = 3) -> None:
    """Let a rank of *name* fail at *at_s* because another one is gone."""
    lost = msgspec.structs.replace(
        with_cause(job.failure(name, at_s=at_s, primary=False, code=code), peer_lost=True), early=early
    )
    job.at(at_s, lambda: job.tell(name, Failing(report=lost)))


WORK = RankWork(
    host="algo-3",
    rank=2,
    steps=30,
    start_s=1.7e9,
    end_s=1.7e9,
    step_s=0.3,
    data_s=0.1,
    forward_s=0.1,
    own_backward_s=0.0,
    optimizer_s=0.0,
    checkpoint_s=0.0,
)


# --- the ranks of all hosts, compared


def test_the_own_work_of_each_host_comes_to_the_leader_and_its_request_for_traces_to_all() -> None:
    job = Job(3)
    job.ready()
    asked = TraceRanks(request=TraceAsked(number=1, slow=2, healthy=0))
    job.at(2.0, lambda: job.tell("algo-3", HostOwnWork(ranks=(WORK,))))
    job.at(3.0, lambda: job.tell("algo-1", asked))
    ends_well(job)

    job.play()

    assert [each for _, each in job.leader.actions if isinstance(each, RanksWork)] == [
        RanksWork(host="algo-3", ranks=(WORK,))
    ]
    assert all(
        [each for _, each in host.actions if isinstance(each, TraceRanks)] == [asked] for host in job.hosts.values()
    )
    assert job.verdicts == {("algo-1", 0)}


def test_own_work_that_could_not_be_sent_is_not_sent_later() -> None:
    job = Job(2)
    job.ready()
    job.at(2.0, lambda: job.cut("algo-2"))
    job.at(2.01, lambda: job.tell("algo-2", HostOwnWork(ranks=(WORK,))))
    ends_well(job)

    job.play()

    assert not job.leader.did(RanksWork)
    assert job.verdicts == {("algo-1", 0)}


# --- the start


@pytest.mark.parametrize("count", SIZES)
def test_nobody_starts_before_all_are_ready(count: int) -> None:
    job = Job(count)
    job.ready(*job.names[:-1])
    job.ready(job.names[-1], after_s=7.0)
    ends_well(job)

    job.play()

    assert all(7.0 <= host.did(AllReady)[0] < 7.1 for host in job.hosts.values())
    assert job.verdicts == {("algo-1", 0)}


def test_the_leader_says_every_ten_seconds_who_is_missing() -> None:
    job = Job(4)
    job.hosts["algo-3"].starts_s = 25.0
    job.ready("algo-1", "algo-2", "algo-4")
    job.hosts["algo-4"].starts_s = 15.0
    job.ready("algo-3", after_s=32.0)
    ends_well(job, 40.0)

    job.play()

    assert job.leader.said.splitlines() == [
        "waiting for hosts algo-3, algo-4 to join",
        "waiting for host algo-3 to join",
        "waiting for host algo-3 to be ready",
    ]
    assert started(job)


@pytest.mark.parametrize("count", SIZES)
def test_hosts_that_never_come_are_named_at_the_deadline(count: int) -> None:
    job = Job(count)
    job.kill(job.names[-1])
    job.ready()

    job.play()

    assert job.verdicts == {(job.names[-1], 75)}
    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.cause.message == f"waited 60 s in vain for host {job.names[-1]} (TOOLKIT_JOIN_S)"
    assert all(60.0 <= host.left_s < 60.1 for host in job.hosts.values() if host.alive)
    assert not job.leader.did(AllReady)


@pytest.mark.parametrize("waits", ["algo-1", "algo-2"])
def test_a_host_that_waits_for_a_name_is_named_with_what_it_waits_for(waits: str) -> None:
    job = Job(3)
    job.ready(*(name for name in job.names if name != waits))
    job.at(10.0, lambda: job.tell(waits, NotReady(needs="host algo-3 to resolve")))

    job.play()

    assert job.verdicts == {(waits, 75)}
    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.cause.message == f"host {waits} waited 60 s in vain for host algo-3 to resolve (TOOLKIT_JOIN_S)"
    if waits != "algo-1":
        assert f"waiting for host {waits} to be ready (it waits for host algo-3 to resolve)" in job.leader.said


def test_beside_an_absent_host_stands_what_the_others_waited_for() -> None:
    job = Job(3)
    job.kill("algo-3")
    job.ready("algo-2")
    job.at(10.0, lambda: job.tell("algo-1", NotReady(needs="host algo-3 to resolve")))

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.host == "algo-3"
    assert verdict.cause.message == (
        "waited 60 s in vain for host algo-3 (TOOLKIT_JOIN_S); host algo-1 waited for host algo-3 to resolve"
    )


def test_what_a_host_waited_for_is_awaited_for_a_moment_at_the_deadline() -> None:
    job = Job(2)
    job.ready("algo-2")
    job.at(60.2, lambda: job.tell("algo-1", NotReady(needs="host algo-2 to resolve")))

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert "host algo-2 to resolve" in verdict.cause.message


def test_a_host_that_has_waited_and_is_ready_waits_no_more() -> None:
    job = Job(3)
    job.kill("algo-3")
    for name in ("algo-1", "algo-2"):
        job.at(10.0, lambda name=name: job.tell(name, NotReady(needs="host algo-3 to resolve")))  # type: ignore[misc]
    job.ready("algo-1", "algo-2", after_s=20.0)

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.cause.message == "waited 60 s in vain for host algo-3 (TOOLKIT_JOIN_S)"


def test_of_many_missing_hosts_eight_are_named() -> None:
    job = Job(30)
    for name in job.names[10:]:
        job.kill(name)
    job.ready()

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert "algo-11, algo-12, algo-13, algo-14, algo-15, algo-16, algo-17, algo-18 and 12 more" in verdict.cause.message


def test_a_host_whose_leader_never_comes_names_it() -> None:
    job = Job(2)
    job.kill("algo-1")
    job.ready("algo-2")

    job.play()

    assert job.verdicts == {("algo-1", 75)}
    assert "waiting for host algo-1, the leader, to answer" in job.hosts["algo-2"].said


def test_a_host_that_fails_before_the_others_came_waits_to_tell_them() -> None:
    job = Job(3)
    job.hosts["algo-3"].starts_s = 12.0
    job.at(0.5, lambda: job.tell("algo-1", HostEnded(report=job.failure("algo-1", code=78))))

    job.play()

    assert job.verdicts == {("algo-1", 78)}
    assert job.hosts["algo-2"].left_s < 2.5
    assert 12.0 <= job.hosts["algo-3"].left_s < 12.1
    assert job.now_s - job.began_s < 12.2


def test_it_does_not_wait_for_them_for_ever() -> None:
    job = Job(2)
    job.kill("algo-2")
    job.at(0.5, lambda: job.tell("algo-1", HostEnded(report=job.failure("algo-1", code=78))))

    job.play()

    assert job.leader.left_s < 1.0
    assert LINGER_S <= job.now_s - job.began_s < LINGER_S + 3
    assert "waiting up to 30 s for host algo-2, to say that the job has failed" in job.leader.said


def test_a_follower_that_fails_waits_for_a_late_leader_and_not_for_ever() -> None:
    late, never = Job(2), Job(2)
    never.kill("algo-1")
    for job, starts_s in ((late, 10.0), (never, 0.0)):
        job.hosts["algo-2"].starts_s = starts_s
        job.at(0.1, lambda job=job: job.tell("algo-2", HostEnded(report=job.failure("algo-2", code=4))))  # type: ignore[misc]
        job.play()

    assert late.verdicts == never.verdicts == {("algo-2", 4)}
    assert late.leader.left_s < 10.5
    assert LINGER_S <= never.hosts["algo-2"].left_s < LINGER_S + 2


@pytest.mark.parametrize("stopped", ["algo-1", "algo-2"])
def test_a_host_that_is_stopped_before_the_join_tells_one_that_comes_later(stopped: str) -> None:
    job = Job(3, times=msgspec.structs.replace(TIMES, grace_s=20.0))
    job.hosts["algo-2"].starts_s = 12.0
    other = "algo-2" if stopped == "algo-1" else "algo-1"
    job.at(3.0, lambda: job.tell(stopped, Stop(host=stopped, signal=15)))
    job.at(3.1, lambda: job.end(stopped, 143, stopped=True))
    for name in (other, "algo-3"):
        job.at(12.5, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play()

    assert {code for _, code in job.verdicts} == {143}
    assert stops(job.hosts[other]) == stops(job.hosts["algo-3"]) == [15]
    assert 12.0 < job.now_s - job.began_s < 13.0


@pytest.mark.parametrize("gone", ["algo-1", "algo-2"])
def test_a_stopped_host_waits_for_one_that_never_comes_no_longer_than_its_grace(gone: str) -> None:
    job = Job(2)
    stopped = "algo-2" if gone == "algo-1" else "algo-1"
    job.kill(gone)
    job.at(3.0, lambda: job.tell(stopped, Stop(host=stopped, signal=15)))
    job.at(3.1, lambda: job.end(stopped, 143, stopped=True))

    job.play()

    assert job.verdicts == {(stopped, 143)}
    assert 7.9 < job.now_s - job.began_s < 9.2
    assert "waiting up to 5 s for host " in job.hosts[stopped].said


def test_a_stopped_host_that_the_leader_refuses_or_whose_time_to_join_is_over_counts_as_stopped() -> None:
    for join_s, refused in ((60.0, True), (4.0, False)):
        times = msgspec.structs.replace(TIMES, join_s=join_s, grace_s=90.0)
        follower = Follower("algo-2", "algo-1", times, 0.0)
        follower.tell(Stop(host="algo-2", signal=15), 3.0)
        follower.tell(HostEnded(report=EndReport(host="algo-2", exit_code=143, stopped=True)), 3.0)
        for at_s in range(4, 12):
            if refused:
                follower.on_refusal(float(at_s))
            follower.tick(float(at_s), 0)

        assert follower.verdict is not None
        assert (follower.verdict.exit_code, follower.verdict.stopped) == (143, True)


# --- failures


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("place", [0, -1])
def test_a_failure_reaches_every_host_at_once(count: int, place: int) -> None:
    job = Job(count)
    culprit = job.names[place]
    job.ready()
    job.at(5.0, lambda: job.tell(culprit, Failing(report=job.failure(culprit))))
    job.at(5.5, lambda: job.tell(culprit, HostEnded(report=job.failure(culprit))))

    job.play()

    assert job.verdicts == {(culprit, 3)}
    assert all(5.0 <= host.did(PeerFailed)[0] < 5.1 for host in job.hosts.values() if host.name != culprit)
    assert not job.hosts[culprit].did(PeerFailed)
    assert all(host.left_s < 5.1 for host in job.hosts.values())


@pytest.mark.parametrize("seed", range(20))
def test_a_cause_goes_before_its_echoes_in_whatever_order_they_come(seed: int) -> None:
    job = Job(6, seed=seed, delay_s=(0.001, 0.3))
    job.ready()
    names = list(job.names)
    job.random.shuffle(names)
    culprit, *echoes = names[:4]
    for name in echoes:  # Its peers' connections break before the culprit has even ended.
        report = job.failure(name, at_s=5.0 + job.random.random(), primary=False, code=1)
        job.at(5.0 + job.random.random() * 0.3, lambda r=report: job.tell(r.host, Failing(report=r)))  # type: ignore[misc]
    last = job.failure(culprit, at_s=5.6)
    job.hosts[culprit].own_failure = last
    job.at(5.6, lambda: job.tell(culprit, Failing(report=last)))

    job.play()

    assert job.verdicts == {(culprit, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_the_earlier_of_two_causes_wins_in_whatever_order_they_come(seed: int) -> None:
    job = Job(5, seed=seed, delay_s=(0.001, 0.4))
    job.ready()
    first, second = job.random.sample(job.names, 2)
    for name, at_s in ((first, 5.0), (second, 5.03)):
        report = job.failure(name, at_s=at_s, code=3 if name == first else 4)
        job.hosts[name].own_failure = report
        job.at(at_s + job.random.random() * 0.2, lambda r=report: job.tell(r.host, Failing(report=r)))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {(first, 3)}


def test_hosts_whose_ranks_ended_with_the_same_traceback_are_counted_together() -> None:
    job = Job(4)
    job.ready()
    for name, same, alike in (("algo-2", "A", 7), ("algo-1", "A", 0), ("algo-4", "B", 5), ("algo-3", "A", 2)):
        late_s = 0.0 if name == "algo-2" else 0.01
        report = job.failure(name, at_s=5.0 + late_s)
        job.hosts[name].own_failure = report = with_cause(report, fingerprint=same, identical_failures=alike)
        job.at(5.0 + late_s, lambda r=report: job.tell(r.host, Failing(report=r)))  # type: ignore[misc]

    job.play()

    told = {host.verdict for host in job.hosts.values()}
    assert {(report.host, report.cause.identical_failures) for report in told if report is not None} == {("algo-2", 11)}


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_ended_with_0_is_the_cause_where_all_others_lost_it(count: int, seed: int) -> None:
    job = Job(count, seed=seed)
    job.ready()
    culprit, *losers = job.random.sample(job.names, count)
    job.hosts[culprit].own_failure = EndReport(host=culprit, exit_code=0, early=left(job, culprit, 2.0))
    codes = {5.0 + job.random.random() * 0.3: code for code, _ in enumerate(losers, 3)}
    for name, (at_s, code) in zip(losers, codes.items(), strict=True):
        loses(job, name, at_s, code=code)

    job.play()

    (verdict,) = {host.verdict for host in job.hosts.values()}
    assert verdict is not None
    assert (verdict.host, verdict.cause.rank, verdict.cause.primary) == (culprit, 7, True)
    assert verdict.exit_code == codes[min(codes)]  # That of the first to lose it.
    assert verdict.cause.message.startswith(f"rank 7 of host {culprit} ended with 0, 3.")
    assert all(5.5 < host.left_s < 6.5 for host in job.hosts.values())


def test_of_ranks_that_ended_with_0_on_several_hosts_the_first_is_the_cause() -> None:
    job = Job(4)
    job.ready()
    job.hosts["algo-2"].own_failure = EndReport(host="algo-2", exit_code=0, early=left(job, "algo-2", 4.0))
    job.at(
        3.0,
        lambda: job.tell(
            "algo-3", HostEnded(report=EndReport(host="algo-3", exit_code=0, early=left(job, "algo-3", 3.0)))
        ),
    )
    loses(job, "algo-1", 5.0, left(job, "algo-1", 4.5))

    job.play()

    assert job.verdicts == {("algo-3", 3)}


def test_a_rank_that_ended_with_0_is_not_blamed_for_a_stop() -> None:
    job = Job(2)
    job.ready()
    stopped = EndReport(host="algo-2", exit_code=143, stopped=True, early=left(job, "algo-2", 1.0))
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    job.at(6.0, lambda: job.tell("algo-2", HostEnded(report=stopped)))
    job.at(6.1, lambda: job.end("algo-1", 0, stopped=True))

    job.play()

    assert job.verdicts == {("algo-2", 143)}
    assert not any(host.verdict is None or host.verdict.cause.is_early_exit for host in job.hosts.values())


@pytest.mark.parametrize("late_s", [0.01, 0.4])
def test_a_failure_of_its_own_goes_before_a_rank_that_ended_with_0(late_s: float) -> None:
    job = Job(4)
    job.ready()
    job.hosts["algo-2"].own_failure = EndReport(host="algo-2", exit_code=0, early=left(job, "algo-2", 1.0))
    loses(job, "algo-1", 5.0)
    own = job.failure("algo-4", at_s=4.9, code=5)
    job.at(5.0 + late_s, lambda: job.tell("algo-4", Failing(report=own)))

    job.play()

    assert job.verdicts == {("algo-4", 5)}


@pytest.mark.parametrize("at_s", [1.0, 6.5])
def test_who_lost_no_rank_and_who_lost_it_before_have_not_failed_of_it(at_s: float) -> None:
    """A socket broke (at 5 s, with one that had ended long ago), a rank was lost (before this one had ended)."""
    job = Job(3)
    job.ready()
    job.hosts["algo-2"].own_failure = EndReport(host="algo-2", exit_code=0, early=left(job, "algo-2", at_s))
    echo = with_cause(job.failure("algo-1", at_s=5.0, primary=False), peer_lost=at_s > 5.0)
    job.at(5.0, lambda: job.tell("algo-1", Failing(report=echo)))

    job.play()

    assert job.verdicts == {("algo-1", 3)}


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"process": "rank 0", "process_end": "ended with code 1"}, "rank 0 of host algo-1 failed: ended with code 1"),
        ({"process": "rank 0", "peer_lost": True}, "rank 0 of host algo-1 lost another rank of the job"),
        ({"process": "rank 0", "peer_lost": True, "primary": True}, "rank 0 of host algo-1 ended while others trained"),
        ({}, "host algo-1 failed: no such file"),
    ],
)
def test_the_first_news_says_who_failed_and_leaves_what_a_rank_said_to_the_end(told: dict[str, Any], text: str) -> None:
    assert (
        describe_failure(EndReport(host="algo-1", exit_code=1, cause=Cause(message="no such file\nhere", **told)))
        == text
    )


def test_echoes_alone_are_believed_after_a_while() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2", primary=False, code=1))))

    job.play()

    assert job.verdicts == {("algo-2", 1)}
    assert 6.4 < job.leader.left_s < 6.7


def test_a_host_that_only_ended_with_another_is_never_the_cause() -> None:
    """Its report has no time and is no cause; that must not make it the earliest."""
    echo = EndReport(host="algo-2", exit_code=1, cause=Cause(failed_ns=7))
    healthy = EndReport(host="algo-1", exit_code=75)

    assert choose_cause(echo, healthy) is echo
    assert choose_cause(healthy, echo) is echo
    assert choose_cause(None, healthy) is healthy


def test_a_busy_host_does_not_hold_up_the_verdict() -> None:
    job = Job(3)
    job.ready()
    job.hosts["algo-3"].answers = False
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert 6.4 < job.leader.left_s < 6.7


def test_news_is_light_and_what_many_hosts_are_told_is_bounded() -> None:
    job = Job(3)
    job.ready()
    report = with_cause(job.failure("algo-2"), traceback="t" * 60000)
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=report)))

    job.play()

    (news,) = [message for message in job.hosts["algo-3"].heard if isinstance(message, Failing)]
    assert news.report.cause.traceback == ""
    verdict = job.hosts["algo-3"].verdict
    assert verdict is not None
    assert verdict.cause.traceback == report.cause.traceback
    assert len(cut_for_hosts(report, 10_000).cause.traceback) < 2000


# --- hosts that are lost


@pytest.mark.parametrize("count", SIZES)
def test_a_host_whose_train_is_killed_is_seen_within_two_seconds(count: int) -> None:
    job = Job(count)
    job.ready()
    job.at(5.0, lambda: job.kill(job.names[-1]))

    job.play()

    assert job.verdicts == {(job.names[-1], 75)}
    assert all(host.left_s < 6.2 for host in job.hosts.values() if host.alive)
    assert job.leader.verdict is not None
    assert "its connection was lost and not re-established" in job.leader.verdict.cause.message


@pytest.mark.parametrize("count", SIZES)
def test_a_leader_that_is_killed_is_seen_within_two_seconds(count: int) -> None:
    job = Job(count)
    job.ready()
    job.at(5.0, lambda: job.kill("algo-1"))

    job.play()

    assert job.verdicts == {("algo-1", 75)}
    assert all(host.left_s < 6.2 for host in job.followers)
    assert all(host.did(PeerFailed) for host in job.followers)


@pytest.mark.parametrize("name", ["algo-1", "algo-3"])
def test_a_host_that_falls_silent_is_seen_within_the_patience(name: str) -> None:
    job = Job(4)
    job.ready()
    job.at(5.0, lambda: job.vanish(name))

    job.play()

    assert job.verdicts == {(name, 75)}
    assert all(12.0 < host.left_s < 14.2 for host in job.hosts.values() if host.alive)


@pytest.mark.parametrize(("count", "cut_off"), [(3, True), (4, False)])
def test_hosts_that_vanish_together_are_told_together_by_the_first_of_them(count: int, cut_off: bool) -> None:
    """The log's first line and the verdict name the same host. Of one that is told alone, nothing else is guessed."""
    job = Job(count)
    job.ready()
    job.at(5.0, lambda: job.kill("algo-3"))
    job.at(5.1, lambda: job.kill("algo-2"))

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.host == "algo-3"
    assert verdict.cause.message.startswith("host algo-3 vanished: its connection was lost")
    assert "\nhost algo-2 vanished, too" in verdict.cause.message
    assert verdict.cause.message.endswith("perhaps this host, which leads, is the one that is cut off") == cut_off


@pytest.mark.parametrize("name", ["algo-1", "algo-2"])
def test_a_host_that_pauses_within_the_patience_is_welcomed_back(name: str) -> None:
    job = Job(3)
    job.ready()
    for at_s in (5.0, 15.0, 30.0):
        job.at(at_s, lambda: job.pause(name, 7.0))
    ends_well(job, 50.0)

    job.play()

    assert job.verdicts == {("algo-1", 0)}


def test_a_pause_of_all_hosts_at_once_is_forgiven() -> None:
    """A laptop that slept: nobody heard anything for an hour, and nobody is to blame."""
    job = Job(4)
    job.ready()
    for name in job.names:
        job.at(5.0, lambda name=name: job.pause(name, 3600.0))  # type: ignore[misc]
    ends_well(job, 3700.0)

    job.play(4000.0)

    assert job.verdicts == {("algo-1", 0)}


def test_a_host_that_comes_back_too_late_learns_what_became_of_it() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.pause("algo-3", 13.0))
    late = job.hosts["algo-3"]

    early = job.play(17.0).verdicts
    job.play(30.0)

    assert early == {("nobody", -1), ("algo-3", 75)}
    assert job.verdicts == {("algo-3", 75)}
    assert late.did(PeerFailed)


def test_a_lost_host_is_the_cause_of_what_fails_after_it() -> None:
    job = Job(4)
    job.ready()
    job.at(5.0, lambda: job.kill("algo-3"))
    job.at(5.2, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))
    job.at(5.1, lambda: job.tell("algo-4", Failing(report=job.failure("algo-4", primary=False))))

    job.play()

    assert job.verdicts == {("algo-3", 75)}


def test_a_cause_that_came_before_a_host_was_lost_stays_the_cause() -> None:
    job = Job(4)
    job.ready()
    job.at(4.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))
    job.at(4.001, lambda: job.kill("algo-3"))

    job.play()

    assert job.verdicts == {("algo-2", 3)}


def test_hosts_that_only_echo_wait_for_the_one_whose_connection_broke() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2", primary=False))))
    job.at(5.8, lambda: job.kill("algo-3"))  # Its ranks went first, then train: noticed at 6.8, after ANSWER_S.

    job.play()

    assert job.verdicts == {("algo-3", 75)}


def test_a_followers_own_cause_is_not_lost_with_its_leader() -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.cut("algo-2", for_good=True))
    job.at(5.1, lambda: job.kill("algo-1"))
    job.at(4.5, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2", primary=False, code=1))))

    echo = job.play().verdicts

    job = Job(2)
    job.ready()
    job.at(4.5, lambda: job.kill("algo-1"))
    job.at(4.5, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2", at_s=4.2, code=1))))

    assert echo == {("algo-1", 75)}
    assert job.play().verdicts == {("algo-2", 1)}


def test_a_leader_that_was_paused_for_too_long_learns_that_it_was_the_cause() -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.pause("algo-1", 20.0))

    job.play()

    assert job.verdicts == {("algo-1", 75)}
    assert job.leader.verdict is not None
    assert "host algo-1 vanished: nothing was heard of it for" in job.leader.verdict.cause.message


@pytest.mark.parametrize("count", [2, 3])
def test_a_leader_that_was_paused_for_too_long_after_all_others_ended_well_has_not_succeeded(count: int) -> None:
    """The others gave it up while it could not tell them that all is well."""
    job = Job(count)
    job.ready()
    job.at(1.0, lambda: job.pause("algo-1", 12.0))
    for host in job.followers:
        job.at(1.5, lambda name=host.name: job.end(name))  # type: ignore[misc]
    job.at(13.0, lambda: job.end("algo-1"))
    job.play()

    assert job.verdicts == {("algo-1", 75)}


def test_a_host_that_gave_the_leader_up_after_its_own_good_end_ends_nobodys_work() -> None:
    leader = Leader(("a", "b", "c"), TIMES, 0.0)
    for host in ("b", "c"):
        leader.on_connect(host, 1.0, 0)
    for host in ("a", "b", "c"):
        leader.on_message(host, Ready(), 1.0, 0)
    leader.on_message("c", HostEnded(report=EndReport(host="c", exit_code=0)), 2.0, 0)

    actions = leader.on_message("c", Failing(report=report_vanished("a", "nothing was heard of it", 1)), 10.0, 0)
    for host in ("b", "a"):
        leader.on_message(host, HostEnded(report=EndReport(host=host, exit_code=0)), 20.0, 0)
    before = leader.verdict
    leader.tick(20.0, 0)

    assert actions == []
    assert before is None
    assert leader.verdict is not None
    assert (leader.verdict.host, leader.verdict.exit_code) == ("a", 75)


def test_who_was_paused_itself_says_so_when_it_misses_another() -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.pause("algo-1", 20.0))
    job.at(6.0, lambda: job.kill("algo-2"))

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert verdict.host == "algo-2"
    assert (
        "host algo-1 itself had been paused for 19" in verdict.cause.message or "paused for 20" in verdict.cause.message
    )


# --- broken connections


@pytest.mark.parametrize("count", SIZES)
def test_connections_that_break_and_are_made_again_harm_nobody(count: int) -> None:
    job = Job(count, seed=count)
    job.ready()
    for name in job.names[1:]:
        for _ in range(8):
            job.at(job.random.uniform(0.0, 20.0), lambda name=name: job.cut(name))  # type: ignore[misc]
    ends_well(job)

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    assert started(job)
    assert all(len(host.did(AllReady)) == 1 for host in job.hosts.values())


def test_a_verdict_is_said_again_to_a_host_that_comes_back() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.cut("algo-3"))
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert 5.1 <= job.hosts["algo-3"].left_s < 5.2
    assert job.hosts["algo-3"].did(PeerFailed)  # Though it had the verdict alone, its ranks were stopped.


def test_what_a_host_said_into_a_broken_connection_is_said_again() -> None:
    job = Job(2, delay_s=(0.05, 0.05))
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))
    job.at(5.01, lambda: job.cut("algo-2"))

    job.play()

    assert job.verdicts == {("algo-2", 3)}


def test_an_answer_is_sent_again_too() -> None:
    job = Job(3, delay_s=(0.05, 0.05))
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2", primary=False, code=1))))
    job.hosts["algo-3"].own_failure = job.failure("algo-3", at_s=4.9)
    job.at(5.11, lambda: job.cut("algo-3"))  # Its answer is on its way.

    job.play()

    assert job.verdicts == {("algo-3", 3)}


# --- stops


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("place", [0, -1])
def test_a_stop_signal_on_one_host_stops_all_once(count: int, place: int) -> None:
    job = Job(count)
    job.ready()
    told = job.names[place]
    job.at(5.0, lambda: job.tell(told, Stop(host=told, signal=15)))
    for name in job.names:
        job.at(6.0, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play()

    assert all(stops(host) == ([] if host.name == told else [15]) for host in job.hosts.values())
    assert job.leader.verdict is not None
    assert job.leader.verdict.stopped
    assert {code for _, code in job.verdicts} == {143}


def test_a_stop_that_comes_to_all_hosts_at_once_is_one_stop() -> None:
    job = Job(5)
    job.ready()
    for name in job.names:
        job.at(5.0, lambda name=name: job.tell(name, Stop(host=name, signal=15)))  # type: ignore[misc]
        job.at(6.0, lambda name=name: job.end(name, 0, stopped=True))  # type: ignore[misc]

    job.play()

    assert all(len(stops(host)) <= 1 for host in job.hosts.values())
    assert {code for _, code in job.verdicts} == {0}


def test_a_stop_reaches_a_host_that_was_away() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.cut("algo-3"))
    job.at(5.0, lambda: job.tell("algo-2", Stop(host="algo-2", signal=15)))
    for name in job.names:
        job.at(6.0, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play()

    assert stops(job.hosts["algo-3"]) == [15]


def test_a_host_that_vanishes_while_the_job_stops_does_not_make_it_a_failure() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    job.at(6.0, lambda: job.kill("algo-3"))
    for name in ("algo-1", "algo-2"):
        job.at(6.5, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play()

    assert {code for _, code in job.verdicts} == {143}
    assert job.leader.verdict is not None
    assert job.leader.verdict.stopped


@pytest.mark.parametrize("gone", ["algo-1", "algo-3"])
def test_a_host_that_vanished_before_the_stop_is_the_cause(gone: str) -> None:
    """A platform that sees a host go stops the others, sooner than they can be sure that it does not come back."""
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.kill(gone))
    for name in {"algo-1", "algo-2", "algo-3"} - {gone}:
        job.at(5.1, lambda name=name: job.tell(name, Stop(host=name, signal=15)))  # type: ignore[misc]
        job.at(6.5, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play(until_s=30.0)

    for name in {"algo-1", "algo-2", "algo-3"} - {gone}:
        verdict = job.hosts[name].verdict
        assert verdict is not None
        assert verdict.exit_code == 75
        assert f"host {gone} vanished" in verdict.cause.message


@pytest.mark.parametrize("ended", [(), ("algo-1",)])
def test_a_stop_that_a_host_never_follows_has_an_end(ended: tuple[str, ...]) -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    for name in ended:
        job.at(6.0, lambda name=name: job.end(name, 0, stopped=True))  # type: ignore[misc]

    job.play()

    assert {code for _, code in job.verdicts} == {143}
    assert job.leader.left_s < 5.0 + TIMES.grace_s + 11


def test_a_failure_before_the_stop_is_the_end() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    job.at(6.0, lambda: job.tell("algo-3", HostEnded(report=job.failure("algo-3", at_s=4.9))))
    for name in ("algo-1", "algo-2"):
        job.at(6.5, lambda name=name: job.end(name, 143, stopped=True))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {("algo-3", 3)}


def test_all_stop_at_the_last_of_the_steps_they_could_stop_at() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Stop(host="algo-2", signal=15)))
    for name, step in (("algo-1", 12), ("algo-2", 14), ("algo-3", 13)):
        job.at(5.1, lambda name=name, step=step: job.tell(name, CommonStep(step=step)))  # type: ignore[misc]
        job.at(7.0, lambda name=name: job.end(name, 0, stopped=True))  # type: ignore[misc]

    job.play()

    found = [[a.step for _, a in host.actions if isinstance(a, StopStep)] for host in job.hosts.values()]
    assert found == [[14], [14], [14]]


def test_a_host_without_steps_does_not_hold_up_the_others() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Stop(host="algo-2", signal=15)))
    job.at(5.1, lambda: job.tell("algo-1", CommonStep(step=12)))
    for name in job.names:
        job.at(8.0, lambda name=name: job.end(name, 0, stopped=True))  # type: ignore[misc]

    job.play()

    assert [at_s for at_s in job.leader.did(StopStep) if 5.4 < at_s < 5.7]


# --- what MPI says of a rank on another host


@pytest.mark.parametrize(
    ("grounds", "of", "told"),
    [
        ("output", 5, "MPI_ABORT was invoked on rank 5\nit last said: loss is nan"),
        ("exit_code", 5, "MPI_ABORT was invoked on rank 5"),
        ("output", 4, "loss is nan"),
        ("error", 5, "loss is nan"),
    ],
)
def test_a_rank_that_aborted_is_told_with_mpiruns_words_from_another_host(
    grounds: Evidence, of: int, told: str
) -> None:
    job = Job(3)
    job.ready()
    aborted = EndReport(
        host="algo-2",
        exit_code=7,
        cause=Cause(
            primary=True,
            failed_ns=job.ns(job.began_s + 5.0),
            message="loss is nan",
            process="rank 5",
            rank=5,
            evidence=grounds,
            process_end="ended with code 7",
        ),
    )
    job.leader.own_failure = EndReport(
        host="algo-1", exit_code=0, abort_text=f"MPI_ABORT was invoked on rank {of}", abort_rank=of
    )
    job.at(5.0, lambda: job.tell("algo-2", Failing(report=aborted)))

    job.play()

    assert {host.verdict.cause.message for host in job.hosts.values() if host.verdict} == {told}


# --- a rank that leaves


@pytest.mark.parametrize("who", ["algo-1", "algo-2"])
@pytest.mark.parametrize("ends", [True, False], ids=["its host ends", "its host has other ranks"])
def test_a_rank_that_left_without_mpi_finalize_is_the_cause_where_the_others_go_on(who: str, ends: bool) -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell(who, UnfinalizedRank(early=left(job, who, 5.0), living_ranks=0 if ends else 3)))
    if ends:
        job.at(5.1, lambda: job.end(who))

    job.play()

    verdict = job.leader.verdict
    assert verdict is not None
    assert job.verdicts == {(who, 1)}
    assert verdict.cause.message == f"rank 7 of host {who} ended with 0, 2.0 s earlier; the others lost it"
    assert all(7.0 <= host.did(PeerFailed)[0] < 7.2 for host in job.hosts.values() if host.did(PeerFailed))


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "all leave"])
def test_ranks_that_leave_together_or_in_a_stop_fail_nothing(stop: bool) -> None:
    job = Job(3)
    job.ready()
    for number, name in enumerate(job.names):
        word = UnfinalizedRank(early=left(job, name, 5.0 + number), living_ranks=0)
        job.at(5.0 + number / 2, lambda name=name, word=word: job.tell(name, word))  # type: ignore[misc]
        job.at(12.0, lambda name=name: job.end(name, 0, stopped=stop))  # type: ignore[misc]
    if stop:
        job.at(5.2, lambda: job.tell("algo-3", Stop(host="algo-3", signal=15)))

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    assert not any(host.did(PeerFailed) for host in job.hosts.values())


# --- hangs


def test_a_hang_is_one_only_if_no_host_moves() -> None:
    job = Job(3)
    job.ready()
    for name in job.names[:2]:
        job.at(5.0, lambda name=name: job.tell(name, Idle(seconds=600.0)))  # type: ignore[misc]
    job.at(8.0, lambda: job.tell("algo-1", Idle(seconds=0.0)))
    job.at(9.0, lambda: job.tell("algo-3", Idle(seconds=600.0)))
    job.at(15.0, lambda: job.tell("algo-1", Idle(seconds=600.0)))
    for host in job.hosts.values():
        host.own_failure = EndReport(
            host=host.name,
            exit_code=124,
            cause=Cause(primary=True, kind=HANG),
            stuck_ranks=(
                StuckRank(
                    process=f"rank {host.name[-1]}", activity="waits", file="/code/train.py", line=30, function="step"
                ),
            ),
        )

    job.play()

    assert {code for _, code in job.verdicts} == {124}
    assert all(15.0 <= host.did(Hang)[0] < 15.1 for host in job.hosts.values())
    assert job.leader.verdict is not None
    assert job.leader.verdict.cause.message.endswith("; ranks 1-3 at train.py:30 in step")
    assert job.leader.verdict.of_job
    assert job.leader.left_s < 15.2


def test_a_host_whose_ranks_have_ended_well_hides_no_hang() -> None:
    job = Job(3)
    job.ready()
    job.at(4.0, lambda: job.tell("algo-1", RanksEnded()))
    job.at(5.0, lambda: job.tell("algo-2", Idle(seconds=600.0)))
    job.at(9.0, lambda: job.tell("algo-3", Idle(seconds=600.0)))
    for host in job.hosts.values():
        host.own_failure = EndReport(host=host.name, exit_code=124, cause=Cause(primary=True, kind=HANG))

    job.play()

    assert {code for _, code in job.verdicts} == {124}
    assert all(9.0 <= host.did(Hang)[0] < 9.1 for host in job.hosts.values())


@pytest.mark.parametrize("at_rest", [True, False], ids=["rests", "ends"])
def test_silence_counts_from_the_last_move_of_any_host(at_rest: bool) -> None:
    job = Job(3)
    job.ready()
    job.at(12.0, lambda: job.tell("algo-2", RanksEnded()) if at_rest else job.end("algo-2"))
    for at in range(6, 16):
        for name in ("algo-1", "algo-3"):
            idle = Idle(seconds=float(at), limit_s=6.0)
            job.at(float(at), lambda name=name, idle=idle: job.tell(name, idle))  # type: ignore[misc]
    for name in ("algo-1", "algo-3") if not at_rest else job.names:
        job.at(16.0, lambda name=name: job.end(name))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    assert not any(host.did(Hang) for host in job.hosts.values())


def test_a_hang_after_the_end_of_a_hosts_ranks_is_told_with_the_seconds_since() -> None:
    job = Job(2)
    job.ready()
    job.at(12.0, lambda: job.tell("algo-2", RanksEnded()))
    for at in range(6, 30):
        job.at(float(at), lambda at=at: job.tell("algo-1", Idle(seconds=float(at), limit_s=6.0)))  # type: ignore[misc]
    for host in job.hosts.values():
        host.own_failure = EndReport(host=host.name, exit_code=124, cause=Cause(primary=True, kind=HANG))

    job.play()

    assert {code for _, code in job.verdicts} == {124}
    assert job.leader.verdict is not None
    assert "anything for 7 s" in job.leader.verdict.cause.message


def test_a_hang_that_is_only_reported_is_told_to_all_hosts_and_ends_none() -> None:
    job = Job(3)
    job.ready()
    for at in (5.0, 6.0, 7.0):
        for name in job.names:
            idle = Idle(seconds=at, limit_s=5.0, stops=False)
            job.at(at, lambda name=name, idle=idle: job.tell(name, idle))  # type: ignore[misc]
    for name in job.names:
        job.at(9.0, lambda name=name: job.end(name))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    assert [len(host.did(HangNoticed)) for host in job.hosts.values()] == [1, 1, 1]
    assert not any(host.did(PeerFailed) or host.did(Hang) for host in job.hosts.values())


@pytest.mark.parametrize("culprit", ["algo-1", "algo-3"])
def test_after_a_hang_that_was_only_reported_a_failure_is_told_as_ever(culprit: str) -> None:
    job = Job(3)
    job.ready()
    for name in job.names:
        idle = Idle(seconds=5.0, limit_s=5.0, stops=False)
        job.at(5.5, lambda name=name, idle=idle: job.tell(name, idle))  # type: ignore[misc]
    job.at(9.0, lambda: job.tell(culprit, Failing(report=job.failure(culprit))))

    job.play()

    assert job.verdicts == {(culprit, 3)}
    assert all(9.0 <= host.did(PeerFailed)[0] < 9.1 for host in job.hosts.values() if host.name != culprit)


# --- the end


@pytest.mark.parametrize("count", SIZES)
def test_success_is_success_only_when_all_hosts_say_so(count: int) -> None:
    job = Job(count)
    job.ready()
    for name in job.names[:-1]:
        job.at(5.0, lambda name=name: job.end(name))  # type: ignore[misc]
    job.at(50.0, lambda: job.tell(job.names[-1], HostEnded(report=job.failure(job.names[-1]))))

    job.play()

    assert job.verdicts == {(job.names[-1], 3)}
    assert all(host.left_s >= 50.0 for host in job.hosts.values())


def test_a_host_that_ended_well_may_go_before_the_others_end() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.end("algo-2"))
    job.at(6.0, lambda: job.kill("algo-2"))
    for name in ("algo-1", "algo-3"):
        job.at(9.0, lambda name=name: job.end(name))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {("algo-1", 0)}


def test_the_deadline_of_the_final_barrier_names_who_has_not_ended() -> None:
    job = Job(3, times=msgspec.structs.replace(TIMES, finish_timeout_s=10.0))
    job.ready()
    for name in ("algo-1", "algo-2"):
        job.at(5.0, lambda name=name: job.end(name))  # type: ignore[misc]

    job.play()

    assert job.verdicts == {("algo-3", 75)}
    assert job.leader.verdict is not None
    expected = "host algo-3 had not ended 10 s after the first host had (TOOLKIT_FINISH_TIMEOUT_S)"
    assert job.leader.verdict.cause.message == expected
    assert 15.0 <= job.hosts["algo-3"].did(PeerFailed)[0] < 15.1


def test_the_leader_leaves_when_all_have_the_verdict_and_not_before() -> None:
    job = Job(4)
    job.ready()
    job.at(5.0, lambda: job.pause("algo-3", 1.5))
    job.at(5.1, lambda: job.tell("algo-2", Failing(report=job.failure("algo-2"))))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert job.hosts["algo-3"].left_s >= 6.5
    assert job.now_s - job.began_s < 7.0


# --- anything at all


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_all_that_live_end_with_one_verdict(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([2, 2, 3, 4, 8, 20, 50])
    job = Job(count, seed=seed, delay_s=chance.choice([(0.0002, 0.001), (0.001, 0.2), (0.1, 0.9)]))
    job.loss = chance.choice([0.0, 0.5, 1.0])
    for host in job.hosts.values():
        host.starts_s = 0.0 if host is job.leader else chance.choice([0.0, 0.0, chance.uniform(0, 10)])
    job.ready(after_s=0.0)
    for name in job.names[1:]:
        cuts = chance.choice([0, 0, 1, 3])
        for _ in range(cuts):
            job.at(chance.uniform(0, 40), lambda name=name: job.cut(name))  # type: ignore[misc]
        # Not both: a connection that breaks while its host cannot make it again is a killed train's.
        if not cuts and chance.random() < 0.2:
            job.at(chance.uniform(0, 40), lambda name=name: job.pause(name, chance.uniform(0, 5)))  # type: ignore[misc]
    failures = {}
    for name in chance.sample(job.names, min(count, chance.choice([0, 0, 1, 1, 2, 3]))):
        at_s = chance.uniform(12, 30)
        failures[name] = job.failure(name, at_s=at_s, primary=chance.random() < 0.7, code=chance.choice([1, 3, 137]))
        job.hosts[name].own_failure = None

        def fail(name: str = name) -> None:
            job.hosts[name].own_failure = failures[name]
            job.tell(name, Failing(report=failures[name]))

        job.at(at_s, fail)
    stop = chance.random() < 0.3
    if stop:
        told = chance.choice(job.names)
        job.at(chance.uniform(12, 30), lambda: job.tell(told, Stop(host=told, signal=15)))
    for name in job.names:

        def end(name: str = name) -> None:
            host = job.hosts[name]
            stopped = stop and (bool(stops(host)) or name == told)
            report = host.own_failure or EndReport(host=name, exit_code=143 if stopped else 0, stopped=stopped)
            job.tell(name, HostEnded(report=report))

        job.at(chance.uniform(36, 45), end)

    job.play(200.0)

    assert all(host.verdict is not None for host in job.hosts.values())
    assert len(job.verdicts) == 1
    verdict = job.leader.verdict
    assert verdict is not None
    if not failures and not stop:
        assert verdict.exit_code == 0
    assert all(len(host.did(AllReady)) <= 1 and len(stops(host)) <= 1 for host in job.hosts.values())
    if verdict.failed:
        assert verdict.host in failures
        assert all(host.did(PeerFailed) or host.name in failures for host in job.hosts.values())


def test_each_host_costs_the_same_however_many_there_are() -> None:
    """With 10,000 hosts what one of them says must not make the leader look at all others."""
    hosts = tuple(f"algo-{number}" for number in range(1, 3001))
    leader = Leader(hosts, TIMES, 0.0)
    for host in hosts[1:]:
        leader.on_connect(host, 0.0, 0)
        leader.on_message(host, Ready(), 0.0, 0)
    go = leader.on_message(hosts[0], Ready(), 0.0, 0)
    leader.on_message(
        hosts[5], Failing(report=EndReport(host=hosts[5], exit_code=3, cause=Cause(primary=True))), 1.0, 0
    )

    answers = [leader.on_message(host, HostEnded(report=EndReport(host=host, exit_code=75)), 1.0, 0) for host in hosts]

    assert [type(action) for action in go] == [Send, AllReady]
    assert sum(len(actions) for actions in answers) == 2
    assert isinstance(answers[-1][0], Send)
    assert isinstance(answers[-1][0].message, Verdict)
    assert isinstance(answers[-1][1], JobEnded)


@pytest.mark.parametrize(
    ("hosts", "heartbeat_s", "heartbeat_timeout_s", "expected"),
    [
        (2, 1.0, 8.0, (1.0, 8.0)),
        (4000, 1.0, 8.0, (1.0, 8.0)),
        (10_000, 1.0, 8.0, (2.5, 8.0)),
        (40_000, 1.0, 8.0, (10.0, 30.0)),
        (2, 1.0, 1.0, (pytest.approx(1 / 3), 1.0)),
        (2, 0.0, 0.0, (0.05, pytest.approx(0.15))),
    ],
)
def test_beats_are_as_many_as_the_leader_can_take(
    hosts: int, heartbeat_s: float, heartbeat_timeout_s: float, expected: tuple[float, float]
) -> None:
    times = Timeouts(
        heartbeat_s=heartbeat_s, heartbeat_timeout_s=heartbeat_timeout_s, join_s=1, finish_timeout_s=1, grace_s=1
    ).among(hosts)

    assert (times.heartbeat_s, times.heartbeat_timeout_s) == expected


@pytest.mark.parametrize(("hosts", "quiet_s"), [(2, 8 / 3), (4000, 8 / 3), (10_000, 5.0)])
def test_a_follower_wants_a_second_connection_once_two_answers_are_late(hosts: int, quiet_s: float) -> None:
    follower = Follower("algo-2", "algo-1", TIMES, 0.0)
    times = msgspec.structs.replace(TIMES, heartbeat_s=1.0, heartbeat_timeout_s=8.0).among(hosts)
    follower.on_connect(1.0, 0)
    follower.on_message(
        Welcome(heartbeat_s=times.heartbeat_s, heartbeat_timeout_s=times.heartbeat_timeout_s, leader_ns=0), 1.0
    )

    assert not follower.contact.is_quiet(1.0 + quiet_s - 0.01)
    assert follower.contact.is_quiet(1.0 + quiet_s + 0.01)


def test_what_the_leader_says_to_one_that_joins_is_all_it_has_to_know() -> None:
    leader = Leader(("a", "b", "c"), TIMES, 0.0)
    for host in ("b", "c"):
        leader.on_connect(host, 0.0, 0)
        leader.on_message(host, Ready(), 0.0, 0)
    leader.on_message("a", Ready(), 0.0, 0)
    leader.on_message("c", Stop(host="c", signal=15), 1.0, 0)

    messages = [action.message for action in leader.on_connect("b", 2.0, 0) if isinstance(action, Send)]

    assert messages == [Welcome(heartbeat_s=1.0, heartbeat_timeout_s=8.0, leader_ns=0), Stop(host="c", signal=15), Go()]


def test_a_ping_is_answered_with_the_leaders_clock() -> None:
    leader = Leader(("a", "b"), TIMES, 0.0)
    leader.on_connect("b", 0.0, 0)

    (answer,) = leader.on_message("b", Ping(sent_ns=5), 1.0, 77)

    assert isinstance(answer, Send)
    assert answer.hosts == ("b",)
    assert msgspec.structs.asdict(answer.message) == {"sent_ns": 5, "leader_ns": 77}


# --- launchers that start daemons on the other hosts, and end all ranks as one


def launched(job: Job, at_s: float) -> None:
    """Start all hosts, and have the leader launch a daemon on the others."""
    job.ready()
    for name in job.names[1:]:
        job.at(at_s, lambda name=name: job.tell("algo-1", Launch(host=name, command=f"daemon of {name}")))  # type: ignore[misc]


@pytest.mark.parametrize("count", SIZES)
def test_each_host_is_told_its_own_command_once_even_over_a_new_connection(count: int) -> None:
    job = Job(count)
    launched(job, 5.0)
    job.at(6.0, lambda: job.cut(job.names[-1]))
    ends_well(job)

    job.play()

    for name, host in job.hosts.items():
        commands = [action.command for _, action in host.actions if isinstance(action, Launch)]
        assert commands == ([] if name == "algo-1" else [f"daemon of {name}"])


def test_the_leader_hears_how_each_daemon_ended_and_the_others_that_all_is_over() -> None:
    job = Job(3)
    launched(job, 5.0)
    job.at(7.0, lambda: job.tell("algo-3", DaemonEnded(code=4)))
    job.at(8.0, lambda: job.tell("algo-1", LeaderDone()))
    ends_well(job)

    job.play()

    ends = [(action.host, action.code) for _, action in job.leader.actions if isinstance(action, DaemonEnded)]
    assert ends == [("algo-3", 4)]
    assert [len(host.did(LeaderDone)) for host in job.hosts.values()] == [0, 1, 1]


def test_all_hosts_hear_once_of_the_first_rank_that_is_done_even_over_a_new_connection() -> None:
    job = Job(3)
    job.ready()
    for at_s, name in ((6.0, "algo-3"), (7.0, "algo-1")):
        job.at(at_s, lambda name=name: job.tell(name, RankDone(host=name, process="rank 2")))  # type: ignore[misc]
    job.at(8.0, lambda: job.cut("algo-2"))
    ends_well(job)

    job.play()

    for host in job.hosts.values():
        assert {action for _, action in host.actions if isinstance(action, RankDone)} == {
            RankDone(host="algo-3", process="rank 2")
        }
    assert len(job.leader.did(RankDone)) == 1


@pytest.mark.parametrize("count", SIZES)
def test_the_ranks_of_a_stopped_job_rest_when_those_of_its_last_host_do(count: int) -> None:
    job = Job(count)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    for number, name in enumerate(job.names):
        job.at(6.0 + number / count, lambda name=name: job.tell(name, RanksEnded()))  # type: ignore[misc]
    ends_well(job, 8.0)

    job.play()

    last_s = 6.0 + (count - 1) / count
    for host in job.hosts.values():
        (rested_s,) = host.did(AllRanksEnded)
        assert last_s <= rested_s < last_s + 0.2


def test_a_host_that_vanished_is_not_waited_for_to_rest() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-1", Stop(host="algo-1", signal=15)))
    job.at(5.5, lambda: job.kill("algo-3"))
    for name in ("algo-1", "algo-2"):
        job.at(6.0, lambda name=name: job.tell(name, RanksEnded()))  # type: ignore[misc]

    job.play(until_s=20.0)

    assert len(job.leader.did(AllRanksEnded)) == 1


def test_a_stopped_host_whose_leader_vanished_waits_for_nobody_to_rest() -> None:
    job = Job(3)
    job.ready()
    job.at(5.0, lambda: job.tell("algo-2", Stop(host="algo-2", signal=15)))
    job.at(5.5, lambda: job.kill("algo-1"))

    job.play(until_s=20.0)

    for name in ("algo-2", "algo-3"):
        (rested_s,) = job.hosts[name].did(AllRanksEnded)
        assert rested_s < 8.0


def test_a_host_whose_leader_vanished_while_nothing_stops_hears_of_no_rest() -> None:
    job = Job(2)
    job.ready()
    job.at(5.5, lambda: job.kill("algo-1"))

    job.play(until_s=20.0)

    assert job.hosts["algo-2"].did(JobEnded)
    assert not job.hosts["algo-2"].did(AllRanksEnded)


# --- bad networks


def test_a_cause_that_is_known_here_is_not_replaced_by_a_leader_that_fell_silent_a_moment_before() -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.vanish("algo-1"))
    own = job.failure("algo-2", at_s=5.5)
    job.at(5.5, lambda: job.tell("algo-2", HostEnded(report=own)))

    job.play()

    assert job.hosts["algo-2"].verdict == own


def test_an_echo_is_replaced_by_a_leader_that_fell_silent() -> None:
    job = Job(2)
    job.ready()
    job.at(5.0, lambda: job.vanish("algo-1"))
    job.at(5.5, lambda: job.tell("algo-2", HostEnded(report=job.failure("algo-2", at_s=5.5, primary=False))))

    job.play()

    verdict = job.hosts["algo-2"].verdict
    assert verdict is not None
    assert (verdict.host, verdict.exit_code) == ("algo-1", 75)


def test_first_news_fits_a_small_packet_whatever_the_report_holds() -> None:
    long = "x" * 70_000
    report = EndReport(
        host="a" * 60,
        exit_code=255,
        cause=Cause(
            primary=True,
            failed_ns=1 << 61,
            blame="user",
            kind=long,
            message=long,
            traceback=long,
            process=long,
            pid=4_194_303,
            rank=100_000,
            local_rank=100_000,
            process_end=long,
            advice=long,
            fingerprint=long,
        ),
        stuck_ranks=(StuckRank(process="rank 1", activity="waits", file=long),) * 9,
    )

    assert len(encode(Failing(report=shorten(report), is_whole=False))) < 1200


def test_a_name_is_tried_at_the_leaders_own_port_and_where_somebody_else_answers_at_the_others() -> None:
    route = Route("127.0.0.1", (7776, 7676, 7576), 0.0)

    def ports(count: int) -> list[int]:
        places = [route.choose_address(0.0) for _ in range(count)]
        return [place[1][1] for place in places if place is not None]  # type: ignore[misc]

    assert ports(10) == [7776] * 10
    assert ports(3) == [7676, 7576, 7776]
    route.note_other_program()
    assert ports(4) == [7676, 7576, 7776, 7776]
    route.note_other_program()
    assert ports(1) == [7676]
    route.note_success(0.001, 0.0)
    assert ports(3) == [7676] * 3


def test_the_first_port_has_its_turn_again_where_others_have_all_of_the_leaders_ports() -> None:
    route = Route("127.0.0.1", (7776, 7676), 0.0)
    ports = []
    for _ in range(6):
        address = route.choose_address(0.0)
        assert address is not None
        ports.append(address[1][1])
        route.note_other_program()

    assert ports == [7776, 7676] * 3


def of_names(addresses: Sequence[str]) -> list[Address]:
    return [(socket.AF_INET, (address, 7776)) for address in addresses]


def resolve_to(addresses: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next look-up find *addresses*."""
    monkeypatch.setattr("toolkit.train.peers.route.parse_address", lambda _host, _port: of_names(addresses))


def test_all_addresses_of_a_leader_are_tried_in_turn_whatever_newer_look_ups_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two drop packets: a look-up at every other try must not begin with them again."""
    route = Route("127.0.0.1", (7776,), 0.0)
    tried = []
    for number in range(8):
        resolve_to(["10.0.0.1", "10.0.0.2", "10.0.0.3", *(["10.0.0.4"] if number > 3 else [])], monkeypatch)
        address = route.choose_address(number * RESOLVE_EVERY_S)
        assert address is not None
        tried.append(str(address[1][0])[-1])
        assert route.connect_s < route.within_s

    assert tried == ["1", "2", "3", "1", "4", "2", "3", "1"]


def test_what_was_tried_is_named_with_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    route = Route("127.0.0.1", (7776, 7676), 0.0)
    assert route.describe_tries() == "the look-up of the name 127.0.0.1 gave no address"
    resolve_to([f"10.0.0.{each}" for each in range(6)], monkeypatch)
    for number in range(6):
        route.choose_address(0.0)
        route.note_outcome(("no answer", "nothing listens there")[number % 2])

    assert route.describe_tries() == (
        "tried 10.0.0.0 port 7776 (no answer), 10.0.0.1 port 7776 (nothing listens there), 10.0.0.2 port 7776"
        " (no answer), 10.0.0.3 port 7776 (nothing listens there) and 2 more"
    )


def test_hosts_that_try_in_vain_try_less_often_and_not_at_the_same_moments() -> None:
    route = Route("127.0.0.1", (7776,), 0.0)
    route.choose_address(0.0)

    assert route.pause_s(0.0, 0.0) < route.pause_s(0.0, 1.0) < 0.2
    assert [round(route.pause_s(after_s, 0.5), 2) for after_s in (0.0, 4.0, 60.0)] == [0.1, 0.2, 0.6]
    route.note_success(0.001, 60.0)
    assert round(route.pause_s(60.0, 0.5), 2) == 0.1
    waits = []
    for _ in range(9):
        route.choose_address(60.0)
        waits.append(route.within_s)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1], route.connect_s) == (0.5, 5.0, 0.5)


# --- hosts of one address


@pytest.mark.parametrize(
    ("found", "spaces", "said"),
    [
        ({"algo-1": {"10.0.0.1"}, "algo-2": {"10.0.0.2"}, "algo-3": {"10.0.0.2"}}, "abc", "algo-2 and algo-3"),
        ({"algo-1": {"10.0.0.1"}, "algo-2": {"10.0.0.1"}}, "abc", "algo-1 and algo-2"),
        ({"algo-1": {"10.0.0.1", "172.17.0.1"}, "algo-2": {"10.0.0.2", "172.17.0.1"}}, "abc", None),
        ({"algo-1": {"10.0.0.1", "10.0.0.2"}, "algo-2": {"10.0.0.1", "10.0.0.2"}}, "abc", None),
        ({"algo-1": {"10.0.0.1"}, "algo-2": {"fd00::1", "10.0.0.1"}}, "abc", "algo-1 and algo-2"),
        ({"algo-1": {"10.0.0.1"}, "algo-3": {"fd00::1"}}, "abc", "algo-1 and algo-3"),
        ({"algo-1": {"10.0.0.1"}, "algo-2": {"10.0.0.2"}, "algo-3": {"10.0.0.2", "10.0.0.9"}}, "abc", None),
        (
            {"algo-1": {"10.0.0.1"}, "algo-2": {"10.0.0.2", "10.0.1.2"}, "algo-3": {"10.0.0.2", "10.0.1.2"}},
            "abc",
            "algo-2 and algo-3",
        ),
        ({"algo-1": {"10.0.0.3"}, "algo-3": {"10.0.0.3", "10.0.0.4"}}, "abc", "algo-1 and algo-3"),
        ({"algo-1": {"127.0.0.1"}, "algo-2": {"127.0.0.1"}, "algo-3": {"127.0.0.1"}}, "aab", "algo-1 and algo-3"),
        (
            {"algo-1": {"127.0.0.1"}, "algo-2": {"127.0.0.1"}, "algo-3": {"127.0.0.1"}},
            ("", "", ""),
            "algo-1 and algo-2",
        ),
        ({"algo-1": {"127.0.0.1"}, "algo-2": {"127.0.0.1"}, "algo-3": {"127.0.0.1"}}, "aaa", None),
        ({"algo-1": {"10.0.0.1"}, "algo-2": {"10.0.0.2"}}, "abc", None),
        ({}, "abc", None),
    ],
    ids=[
        "stale-name",
        "stale-name-of-the-leader",
        "docker0",
        "a-service-of-all",
        "two-of-the-leader",
        "another-one-of-the-leader",
        "one-of-several",
        "two-of-a-host",
        "leader-elsewhere",
        "one-elsewhere",
        "unknown-spaces",
        "simulated",
        "well",
        "not-known",
    ],
)
def test_two_hosts_of_one_address_are_refused_before_the_start(
    found: dict[str, set[str]], spaces: Sequence[str], said: str | None
) -> None:
    """The leader has 10.0.0.1, fd00::1 and docker0; the others are seen to have 10.0.0.2 and 10.0.0.3."""
    leader = Leader(("algo-1", "algo-2", "algo-3"), TIMES, 0.0, survey=True)
    own = frozenset({"10.0.0.1", "fd00::1", "172.17.0.1", "127.0.0.1"})
    for number, (host, space) in enumerate(zip(("algo-1", "algo-2", "algo-3"), spaces, strict=True), 1):
        leader.barrier.note_place(host, space, f"10.0.0.{number}" if number > 1 else "")
        if host != "algo-1":
            leader.on_connect(host, 0.0, 0)
        assert not any(isinstance(action, AllReady) for action in leader.on_message(host, Ready(), 0.0, 0))

    actions = leader.on_survey({host: frozenset(each) for host, each in found.items()}, 1.0, own)
    for host in ("algo-2", "algo-3"):
        actions += leader.on_message(host, OwnFailure(report=None), 1.1, 0)
    actions += leader.on_message("algo-1", OwnFailure(report=None), 1.1, 0)

    assert any(isinstance(action, AllReady) for action in actions) == (said is None)
    if said is not None:
        assert leader.verdict is not None
        assert leader.verdict.exit_code == 78
        assert f"hosts {said} both have the address" in leader.verdict.cause.message
        assert "TOOLKIT_HOST_ADDRESSES=" in leader.verdict.cause.advice


def test_a_host_that_knocks_without_proof_and_one_of_thousands_that_are_away_have_more_time_to_reconnect() -> None:
    def lost_after_s(hosts: int, *, knocks: bool) -> float:
        members = Members(tuple(f"algo-{number}" for number in range(2, hosts + 2)), 8.0)
        for number in range(2, hosts + 2):
            members.note_address(f"algo-{number}", f"10.0.0.{number}", direct=True)
            members.note_connection(f"algo-{number}", 0.0)
        for number in range(2, hosts + 2):
            members.note_disconnection(f"algo-{number}", 0.0)
        if knocks:
            members.note_knock("10.0.0.2", 0.5)
        return next(tenth / 10 for tenth in range(100) if members.take_loss("algo-2", tenth / 10, 0) is not None)

    assert lost_after_s(1, knocks=False) == 1.1
    assert lost_after_s(2000, knocks=False) == 3.0
    assert lost_after_s(1, knocks=True) == 8.0


def test_what_was_seen_at_the_port_of_a_killed_leader_counts_only_while_it_is_there() -> None:
    causes = []
    for gone in (False, True):
        follower = Follower("algo-2", "algo-1", TIMES, 0.0)
        follower.on_connect(0.0, 0)
        follower.on_disconnect(1.0)
        follower.contact.note_answerer("something else answers", 1.1)
        if gone:
            follower.contact.note_nobody(refused=True)
        follower.tick(60.0, 60_000_000_000)
        assert follower.verdict is not None
        causes.append(follower.verdict.cause.message)

    assert "something else answers" in causes[0]
    assert "its train was killed, or its machine is gone" in causes[1]


@pytest.mark.parametrize(("refused", "ends_s"), [(True, 2.0), (False, 8.0)])
def test_a_lost_leader_that_refuses_no_connection_is_awaited_as_long_as_a_silent_one(
    refused: bool, ends_s: float
) -> None:
    follower = Follower("algo-2", "algo-1", TIMES, 0.0)
    follower.on_connect(0.0, 0)
    follower.on_disconnect(1.0)
    follower.contact.note_nobody(refused=refused)
    at_s = 1.0
    while follower.verdict is None:
        at_s += 0.5
        follower.tick(at_s, int(at_s * 1e9))

    assert at_s == ends_s
    assert "its train was killed, or its machine is gone" in follower.verdict.cause.message


# --- a leader that closes the connection


def test_a_leader_that_closes_one_connection_has_not_refused_this_host() -> None:
    """One that is being stopped closes it, too; who refuses does so again a second later."""
    follower = Follower("algo-2", "algo-1", TIMES, 0.0)

    first, second, third = (follower.on_refusal(at_s) for at_s in (1.0, 2.0, 3.0))

    assert first == third == []
    assert [action.text for action in second if isinstance(action, LogLine)] == [
        f"link: host algo-1, the leader: {REFUSED}"
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_a_follower_whose_leader_never_comes_tells_of_a_refusal_only_if_it_was_refused_twice(times: int) -> None:
    follower = Follower("algo-2", "algo-1", TIMES, 0.0)
    for at_s in range(times):
        follower.on_refusal(float(at_s))

    follower.tick(TIMES.join_s, 0)

    assert follower.verdict is not None
    assert (REFUSED in follower.verdict.cause.message) == (times == 2)


@pytest.mark.parametrize("how", ["closed", "silent"])
def test_a_host_that_never_learned_that_it_was_taken_is_absent_again(how: str) -> None:
    """On a network with losses the leader's first answer may come too late: the host gives up and tries again."""
    leader = Leader(("a", "b"), TIMES, 0.0)
    leader.on_connect("b", 1.0, 0)

    if how == "closed":
        leader.on_disconnect("b", 3.0)
    else:
        leader.tick(9.5, 0)
    for second in range(10, 30):
        assert not [action for action in leader.tick(float(second), 0) if isinstance(action, PeerFailed)]
    leader.on_connect("b", 30.0, 0)
    leader.on_message("b", Ready(), 30.0, 0)
    actions = leader.on_message("a", Ready(), 30.0, 0)

    assert leader.verdict is None
    assert AllReady() in actions


def test_the_leader_stays_for_a_host_in_a_short_outage_until_it_has_the_verdict() -> None:
    leader = Leader(("a", "b"), TIMES, 0.0)
    leader.on_connect("b", 1.0, 0)
    for host in ("a", "b"):
        leader.on_message(host, Ready(), 1.0, 0)
    leader.on_message("b", HostEnded(report=EndReport(host="b", exit_code=0)), 10.0, 0)
    leader.on_message("a", HostEnded(report=EndReport(host="a", exit_code=0)), 11.0, 0)
    leader.tick(11.0, 0)

    assert leader.verdict is not None
    assert not leader.is_finished(17.9)
    leader.on_connect("b", 17.9, 0)
    assert not leader.is_finished(18.0)
    leader.on_message("b", Bye(), 18.0, 0)
    assert leader.is_finished(18.0)


def test_the_leader_stays_no_longer_than_its_platform_allows_after_a_stop() -> None:
    leader = Leader(("a", "b"), TIMES, 0.0)
    leader.on_connect("b", 1.0, 0)
    for host in ("a", "b"):
        leader.on_message(host, Ready(), 1.0, 0)
    leader.on_message("a", Stop(host="a", signal=15), 2.0, 0)
    for host in ("b", "a"):
        leader.on_message(host, HostEnded(report=EndReport(host=host, exit_code=143, stopped=True)), 6.0, 0)
    leader.tick(6.0, 0)

    assert leader.verdict is not None
    assert not leader.is_finished(7.9)
    assert leader.is_finished(8.0)
