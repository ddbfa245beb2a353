"""Attempts: the ranks of all hosts started again, over networks of every kind (simulated.py)."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from tests.train.peers.simulated import TIMES, Host, Job
from toolkit.job.cause import Cause
from toolkit.job.events import AllReady, Hang, JobEnded, NextAttempt, PeerFailed, Stop
from toolkit.job.restart import Steps
from toolkit.job.stuck import StuckRank
from toolkit.train.peers.leader import Leader
from toolkit.train.peers.messages import Attempt, EndReport, Failing, HostEnded, Idle, Message, Ready
from toolkit.train.peers.protocol import RESTART_S, Action, LogLine, Send
from toolkit.train.peers.reports import HANG, with_cause

SCRIPT = "ExecuteUserScriptError"
SOME = Steps(seen=True, highest=7)


class Attempts(Job):
    """A job whose hosts behave as real ones: they start when told, run for *run_s*, fail as planned, take *teardown_s*
    to end, and are ready again soon after they were told to repeat.

    *plan*: for each attempt, who fails in it, and how; after the last of them all end well.
    """

    def __init__(
        self,
        count: int,
        plan: Sequence[dict[str, EndReport]],
        *,
        restarts: int = 3,
        steps: Steps = SOME,
        run_s: float = 5.0,
        teardown_s: tuple[float, float] = (0.1, 0.5),
        seed: int = 0,
        delay_s: tuple[float, float] = (0.0002, 0.001),
    ) -> None:
        super().__init__(count, seed=seed, delay_s=delay_s)
        self.plan = plan
        self.restarts = restarts
        self.steps = steps
        self.run_s = run_s
        self.teardown_s = teardown_s
        self.attempt = dict.fromkeys(self.names, 0)
        self.running: set[str] = set()
        # Of each attempt: when each host started, and when it ended.
        self.starts: list[dict[str, float]] = [{}]
        self.ends: list[dict[str, float]] = [{}]
        self.stopped: set[str] = set()
        self._leader = Leader(self.names, TIMES, self.now_s, restarts=restarts)
        self.leader.protocol = self._leader
        self.ready()

    @property
    def repeats(self) -> dict[str, list[NextAttempt]]:
        return {
            name: [action for _, action in host.actions if isinstance(action, NextAttempt)]
            for name, host in self.hosts.items()
        }

    def stop(self, name: str) -> None:
        """A stop signal comes to a host."""
        if name not in self.stopped:
            self.stopped.add(name)
            self.tell(name, Stop(host=name, signal=15))
            self._after(name, self._teardown_s, lambda: self.finish(name))

    def _do(self, host: Host, actions: Sequence[Action]) -> None:
        host.answers = host.name in self.running
        super()._do(host, actions)
        for action in actions:
            if isinstance(action, AllReady) and host.name not in self.stopped:
                self._start(host.name)
            elif isinstance(action, Stop):
                self.stopped.add(host.name)
                self._after(host.name, self._teardown_s, lambda: self.finish(host.name))
            elif isinstance(action, PeerFailed | Hang):
                self._after(host.name, self._teardown_s, lambda: self.finish(host.name))
            elif isinstance(action, NextAttempt):
                self._again(host, action.restart.attempt)

    @property
    def _teardown_s(self) -> float:
        return self.random.uniform(*self.teardown_s)

    def _after(self, name: str, seconds: float, act: object) -> None:
        """Let *act* happen on a host, unless it is in another attempt by then."""
        number = self.attempt[name]

        def now() -> None:
            if self.attempt[name] == number and self.hosts[name].alive:
                act()  # type: ignore[operator]

        self.at(self.now_s - self.began_s + seconds, now)

    def _start(self, name: str) -> None:
        number = self.attempt[name]
        self.running.add(name)
        self.starts[number][name] = self.now_s
        failures = self.plan[number] if number < len(self.plan) else {}
        if name in failures:
            self._after(name, self.run_s, lambda: self._fail(name, failures[name]))
        elif not failures:
            self._after(name, self.run_s + self.random.random(), lambda: self.finish(name))

    def _fail(self, name: str, how: EndReport) -> None:
        if name not in self.running:
            return
        report = msgspec.structs.replace(with_cause(how, failed_ns=self.ns(self.now_s)), host=name)
        self.hosts[name].own_failure = report
        self.tell(name, Failing(report=report))
        self._after(name, self._teardown_s, lambda: self.finish(name))

    def finish(self, name: str) -> None:
        """Its processes have ended; a host that was not started yet ends, too."""
        if name in self.ends[self.attempt[name]]:
            return
        self.running.discard(name)
        self.ends[self.attempt[name]][name] = self.now_s
        well = EndReport(host=name, exit_code=143 if name in self.stopped else 0, stopped=name in self.stopped)
        healthy = EndReport(host=name, exit_code=75) if self.hosts[name].did(PeerFailed) and not well.stopped else well
        self.tell(name, HostEnded(report=self.hosts[name].own_failure or healthy, steps=self.steps))

    def _again(self, host: Host, number: int) -> None:
        assert number == self.attempt[host.name] + 1
        assert host.name in self.ends[number - 1]
        self.attempt[host.name] = number
        host.own_failure = None
        host.actions = [(at_s, action) for at_s, action in host.actions if not isinstance(action, PeerFailed)]
        if len(self.starts) == number:
            self.starts.append({})
            self.ends.append({})
        if host.name in self.stopped:
            self._after(host.name, 0.1, lambda: self.finish(host.name))
        else:
            self._after(host.name, self.random.uniform(0.05, 0.5), lambda: self.tell(host.name, Ready()))


def boom(code: int = 3, kind: str = SCRIPT, *, preempted: bool = False, primary: bool = True) -> EndReport:
    return EndReport(
        host="",
        exit_code=code,
        cause=Cause(primary=primary, kind=kind, message="boom", process="rank 0", preempted=preempted),
    )


@pytest.mark.parametrize("count", [2, 3, 7, 50])
def test_all_hosts_start_again_once_all_have_ended_and_not_before(count: int) -> None:
    job = Attempts(count, [{"algo-2": boom()}, {"algo-1": boom(139)}])

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    for number in (1, 2):
        assert len(job.starts[number]) == count
        assert min(job.starts[number].values()) > max(job.ends[number - 1].values())
    (told,) = {tuple(each) for each in job.repeats.values()}
    assert [(each.restart.attempt, each.restart.host, each.used) for each in told] == [
        (1, "algo-2", 1),
        (2, "algo-1", 2),
    ]


@pytest.mark.parametrize(("state", "blamed"), [("", ""), ("stopped (SIGSTOP)", "algo-2")])
def test_a_restart_after_a_hang_names_a_host_only_if_one_holds_the_others_up(state: str, blamed: str) -> None:
    job = Attempts(3, [{"none": boom()}])

    def hang() -> None:
        for name in job.names:
            rank = StuckRank(
                process="script", activity="works", file="train.py", line=6, process_state=state * (name == "algo-2")
            )
            job.hosts[name].own_failure = EndReport(
                host=name, exit_code=124, cause=Cause(primary=True, kind=HANG), stuck_ranks=(rank,)
            )
            job.tell(name, Idle(seconds=600.0))

    job.at(5.0, hang)

    job.play()

    assert job.verdicts == {("algo-1", 0)}
    (told,) = {tuple(each) for each in job.repeats.values()}
    assert [each.restart.host for each in told] == [blamed]
    assert "host algo-2" in told[0].restart.message


def test_when_none_are_left_the_last_cause_is_the_verdict() -> None:
    job = Attempts(3, [{"algo-2": boom(5)}, {"algo-3": boom(6)}, {"algo-1": boom(7)}], restarts=2)

    job.play()

    assert job.verdicts == {("algo-1", 7)}
    assert "no restart: all of TOOLKIT_RESTARTS=2 are used up" in job.leader.said


def test_without_restarts_nobody_waits_for_slow_ends_and_nothing_is_said() -> None:
    job = Attempts(3, [{"algo-2": boom()}], restarts=0, teardown_s=(20.0, 20.0))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert all(host.left_s < 6.0 for host in job.hosts.values())
    assert "restart" not in job.leader.said


@pytest.mark.parametrize(
    ("how", "said"),
    [(boom(93, "HealthRule"), "HealthRule would come again"), (boom(78), "exit code 78 says that trying again")],
)
def test_what_is_not_worth_it_ends_the_job_as_soon_as_it_is_known(how: EndReport, said: str) -> None:
    job = Attempts(3, [{"algo-3": how}], teardown_s=(20.0, 20.0))

    job.play()

    assert job.verdicts == {("algo-3", how.exit_code)}
    assert all(host.left_s < 6.0 for host in job.hosts.values())
    assert said in job.leader.said


def test_without_a_step_on_any_host_there_is_no_restart() -> None:
    job = Attempts(3, [{"algo-3": boom()}], steps=Steps())

    job.play()

    assert job.verdicts == {("algo-3", 3)}
    assert "no restart: no step was seen" in job.leader.said


def test_preemptions_are_free_while_the_job_moves_on() -> None:
    job = Attempts(2, [{"algo-2": boom(143, preempted=True)}] * 2, restarts=1)

    job.play()

    (told,) = {tuple(each) for each in job.repeats.values()}
    assert job.verdicts == {("algo-1", 0)}
    assert [(each.restart.counted, each.used) for each in told] == [(False, 0), (True, 1)]


def test_a_failure_before_all_were_started_again_ends_the_job() -> None:
    leader = Leader(("a", "b"), TIMES, 0.0, restarts=2)
    failed = msgspec.structs.replace(with_cause(boom(), failed_ns=5), host="b")
    healthy = HostEnded(report=EndReport(host="a", exit_code=75))
    leader.on_connect("b", 0.0, 0)
    for host, message in (("b", Ready()), ("a", Ready()), ("b", HostEnded(report=failed, steps=SOME)), ("a", healthy)):
        leader.on_message(host, message, 1.0, 0)

    leader.on_message("b", Attempt(number=1), 2.0, 0)
    leader.on_message("b", HostEnded(report=failed, steps=SOME), 2.0, 0)
    actions = leader.on_message("a", healthy, 2.0, 0)

    assert leader.verdict == failed
    assert actions[0] == LogLine(text="no restart: the ranks had not been started on every host", warns=True)


@pytest.mark.parametrize("way", ["kill", "vanish"])
@pytest.mark.parametrize("at_s", [5.6, 6.45, 6.7, 7.4])
@pytest.mark.parametrize("name", ["algo-1", "algo-3"])
def test_a_host_that_is_lost_on_the_way_ends_the_job(name: str, at_s: float, way: str) -> None:
    """While the others still end, between two attempts, before the ranks run, while they do."""
    job = Attempts(4, [{"algo-2": boom()}], teardown_s=(1.0, 1.0), run_s=5.4)
    job.at(at_s, lambda: getattr(job, way)(name))

    job.play()

    # Of a leader that is lost within a beat of the failure, the failing host cannot say which came first.
    assert job.verdicts <= {("algo-2", 3), (name, 75)}
    assert len(job.verdicts) == 1 or name == "algo-1"
    assert job.now_s - job.began_s < 20.0


def test_a_host_lost_before_all_have_ended_is_no_reason_to_forget_the_cause() -> None:
    job = Attempts(4, [{"algo-2": boom()}], teardown_s=(3.0, 3.0))
    job.at(5.5, lambda: job.kill("algo-3"))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert "no restart: host algo-3 is gone, and only a new job can replace it" in job.leader.said


@pytest.mark.parametrize("at_s", [4.2, 4.9, 5.2, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_falls_silent_while_all_are_awaited_does_not_replace_a_cause_that_a_rank_reported(
    at_s: float, seed: int
) -> None:
    """Silence is dated from the last heartbeat, which came before the failure that is known."""
    job = Attempts(4, [{"algo-2": boom()}], teardown_s=(20.0, 20.0), seed=seed)
    job.at(at_s, lambda: job.vanish("algo-3"))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert "no restart: host algo-3 is gone" in job.leader.said


def test_a_host_that_had_ended_and_is_lost_while_others_still_end_is_missed() -> None:
    job = Attempts(4, [{"algo-2": boom()}], teardown_s=(9.0, 9.0))
    job.at(5.2, lambda: job.finish("algo-2"))
    job.at(8.0, lambda: job.kill("algo-2"))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert "no restart: host algo-2 is gone" in job.leader.said
    assert job.leader.left_s < 15.0


def test_a_host_that_never_ends_is_waited_for_only_so_long() -> None:
    job = Attempts(3, [{"algo-2": boom()}], teardown_s=(500.0, 500.0))

    job.play()

    assert job.verdicts == {("algo-2", 3)}
    assert "no restart: hosts algo-1, algo-2, algo-3 had not ended" in job.leader.said
    assert 5.0 + TIMES.grace_s + RESTART_S <= job.leader.left_s < 8.0 + TIMES.grace_s + RESTART_S


@pytest.mark.parametrize("at_s", [3.0, 5.2, 6.2, 8.0])
@pytest.mark.parametrize("name", ["algo-1", "algo-3"])
def test_a_stop_ends_the_job_whenever_it_comes(name: str, at_s: float) -> None:
    job = Attempts(3, [{"algo-2": boom()}, {"algo-2": boom()}], teardown_s=(0.5, 0.9), run_s=5.0)
    job.at(at_s, lambda: job.stop(name))

    job.play()

    assert len(job.verdicts) == 1
    assert next(iter(job.verdicts))[1] in (143, 3)
    assert job.now_s - job.began_s < at_s + 3.0
    assert at_s != 5.2 or not job.repeats[name]
    assert all(started_s - job.began_s < at_s + 0.1 for started_s in job.starts[-1].values())


def test_news_of_a_round_that_is_over_is_no_news() -> None:
    leader = Leader(("a", "b"), TIMES, 0.0, restarts=2)
    failed = msgspec.structs.replace(with_cause(boom(), failed_ns=5), host="b")
    words: list[tuple[str, Message]] = [
        ("b", Ready()),
        ("a", Ready()),
        ("b", Failing(report=failed)),
        ("b", HostEnded(report=failed, steps=SOME)),
    ]
    leader.on_connect("b", 0.0, 0)
    for host, message in words:
        leader.on_message(host, message, 1.0, 0)
    repeated = leader.on_message("a", HostEnded(report=EndReport(host="a", exit_code=75)), 1.5, 0)

    # Its connection broke before NextAttempt came, so it says everything again.
    leader.on_disconnect("b", 1.6)
    back = leader.on_connect("b", 1.7, 0)
    late = [leader.on_message("b", message, 1.7, 0) for _, message in words]
    leader.on_message("a", Ready(), 1.7, 0)
    leader.on_message("b", Attempt(number=1), 1.8, 0)
    start = leader.on_message("b", Ready(), 1.8, 0)

    assert [type(action) for action in repeated] == [Send, NextAttempt]
    assert any(isinstance(action, Send) and isinstance(action.message, NextAttempt) for action in back)
    assert late == [[]] * 4
    assert [type(action) for action in start] == [Send, AllReady]


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_rounds_do_not_mix_and_all_end_with_one_verdict(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([2, 2, 3, 4, 8, 20])
    names = [f"algo-{number}" for number in range(1, count + 1)]
    plan = []
    for _ in range(chance.choice([1, 2, 3])):
        failing = chance.sample(names, min(count, chance.choice([1, 1, 2])))
        plan.append({name: boom(chance.choice([1, 3, 137]), primary=chance.random() < 0.7) for name in failing})
    job = Attempts(
        count,
        plan,
        restarts=chance.choice([1, 2, 5]),
        teardown_s=chance.choice([(0.01, 0.05), (0.1, 3.0)]),
        seed=seed,
        delay_s=chance.choice([(0.0002, 0.001), (0.001, 0.2), (0.1, 0.9)]),
    )
    job.loss = chance.choice([0.0, 0.5, 1.0])
    for name in names[1:]:
        cuts = chance.choice([0, 1, 5])
        for _ in range(cuts):
            job.at(chance.uniform(0, 40), lambda name=name: job.cut(name))  # type: ignore[misc]
        if not cuts and chance.random() < 0.3:
            job.at(chance.uniform(0, 40), lambda name=name: job.pause(name, chance.uniform(0, 5)))  # type: ignore[misc]
    lost = chance.choice([None, None, None, *names])
    if lost is not None:
        job.at(chance.uniform(4, 25), lambda: job.kill(lost))
    if chance.random() < 0.2:
        told = chance.choice(names)
        job.at(chance.uniform(4, 25), lambda: job.stop(told))

    job.play(300.0)

    living = [host for host in job.hosts.values() if host.alive]
    assert all(host.verdict is not None and len(host.did(JobEnded)) == 1 for host in living)
    # Where the leader is lost, its followers have what each of them knows.
    assert len(job.verdicts) == 1 or lost == names[0]
    assert all([each.restart.attempt for each in told] == [*range(1, len(told) + 1)] for told in job.repeats.values())
    for before, after in zip(job.ends, job.starts[1:], strict=False):
        if after:
            assert len(before) == count
            assert min(after.values()) > max(before.values())
    if lost is None and not job.stopped:
        rounds = min(len(plan), job.restarts)
        assert len(job.repeats[names[0]]) == rounds
        assert {code == 0 for _, code in job.verdicts} == {rounds == len(plan)}


def test_each_host_costs_the_same_however_many_there_are() -> None:
    """With 10,000 hosts the end of one of them must not make the leader look at all others."""
    hosts = tuple(f"algo-{number}" for number in range(1, 3001))
    leader = Leader(hosts, TIMES, 0.0, restarts=1)
    for host in hosts[1:]:
        leader.on_connect(host, 0.0, 0)
        leader.on_message(host, Ready(), 0.0, 0)
    leader.on_message(hosts[0], Ready(), 0.0, 0)
    failed = msgspec.structs.replace(with_cause(boom(), failed_ns=1), host=hosts[5])
    leader.on_message(hosts[5], Failing(report=failed), 1.0, 0)

    answers = [
        leader.on_message(host, HostEnded(report=EndReport(host=host, exit_code=75), steps=SOME), 1.0, 0)
        for host in hosts
    ]

    assert sum(len(actions) for actions in answers) == 2
    assert [type(action) for action in answers[-1]] == [Send, NextAttempt]
