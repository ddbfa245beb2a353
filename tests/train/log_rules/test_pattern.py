import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.metrics.guard import MatchGuard
from toolkit.train.log_rules.document import Rule, compiled
from toolkit.train.log_rules.event import RuleEvent
from toolkit.train.log_rules.pattern import SHOWN, PatternMonitor

START = {"name": "start", "pattern": "begin", "expected_start_within_s": 10}
AGAIN = {"name": "again", "pattern": "step", "expected_again_every_s": 5}
BOTH = {"name": "both", "pattern": "step", "expected_start_within_s": 10, "expected_again_every_s": 5}
FAULT = {"name": "fault", "pattern": "ECC"}
SLOW = {"name": "slow", "pattern": r"speed=(\S+)", "threshold": 80, "operator": "lt", "data_points": 3}
UNTIL = {**BOTH, "stop_pattern": "over"}

# A history: (time, line), line None for a tick alone; what is found: (kind, its time).
History = list[tuple[float, str | None]]
HISTORIES: dict[str, tuple[dict[str, Any], History, list[tuple[str, float]]]] = {
    "a start in time": (START, [(9, "begin"), (50, None)], []),
    "a start just in time": (START, [(10, "begin"), (50, None)], []),
    "a start too late": (START, [(10.1, None), (50, None)], [("late start", 10)]),
    "a start too late, seen with the line itself": (START, [(11, "begin"), (50, None)], [("late start", 10)]),
    "nothing is expected again before the first": (AGAIN, [(50, None), (60, "other")], []),
    "just in time, again and again": (AGAIN, [(0, "step"), (5, "step"), (10, "step")], []),
    "a gap is told once": (AGAIN, [(0, "step"), (6, None), (7, None), (90, None)], [("late again", 5)]),
    "each gap is told": (AGAIN, [(0, "step"), (6, "step"), (12, "step")], [("late again", 5), ("late again", 11)]),
    "a late start counts from its line on": (
        BOTH,
        [(20, "step"), (30, None)],
        [("late start", 10), ("late again", 25)],
    ),
    "asleep after the stop": (UNTIL, [(1, "step"), (2, "over"), (90, None)], []),
    "asleep for good": (UNTIL, [(1, "over"), (2, "step"), (90, None)], []),
    "asleep before the start": (UNTIL, [(1, "over"), (90, None)], []),
    "a line that is the last and the stop": (UNTIL, [(1, "step over"), (90, None)], []),
    "too late before the stop": (UNTIL, [(1, "step"), (9, "over")], [("late again", 6)]),
    "a match": (FAULT, [(1, "ECC")], [("matched", 1)]),
    "matches without a pause": (FAULT, [(second, "ECC") for second in range(0, 600, 59)], [("matched", 0)]),
    "matches after a pause": (FAULT, [(1, "ECC"), (61, "ECC"), (120, "ECC")], [("matched", 1), ("matched", 61)]),
    "two of three in a row": (SLOW, [(1, "speed=70"), (2, "speed=70"), (3, "speed=90"), (4, "speed=70")], []),
    "three in a row": (SLOW, [(1, "speed=70"), (2, "speed=70"), (3, "speed=79.9")], [("threshold", 3)]),
    "three in a row, lines between": (
        SLOW,
        [(1, "speed=70"), (2, "x"), (3, "speed=n/a"), (4, "speed=nan"), (5, "speed=7"), (6, "speed=7")],
        [("threshold", 6)],
    ),
    "a long row is told once": (SLOW, [(second, "speed=1") for second in range(50)], [("threshold", 2)]),
    "one good value does not begin anew": (
        SLOW,
        [(second, f"speed={speed}") for second, speed in enumerate([1, 1, 1, 99, 1, 1, 1, 99, 99, 1, 1, 1])],
        [("threshold", 2)],
    ),
    "three good values do": (
        SLOW,
        [(second, f"speed={speed}") for second, speed in enumerate([1, 1, 1, 99, 99, 99, 1, 1, 1])],
        [("threshold", 2), ("threshold", 8)],
    ),
    "a clock that goes back stands": (AGAIN, [(10, "step"), (3, "step"), (14, None)], []),
    "only newlines and pieces of none": ({**AGAIN, "pattern": ".*"}, [(0, "")], []),
}


def monitor(
    *rules: dict[str, Any], guard: MatchGuard | None = None, messages: list[str] | None = None
) -> PatternMonitor:
    warn = pytest.fail if messages is None else messages.append
    return PatternMonitor([Rule(**rule) for rule in rules], start_s=0.0, warn=warn, watch=guard)


def replay(watching: PatternMonitor, history: History) -> list[RuleEvent]:
    events = []
    for now_s, line in history:
        if line is None:
            events += watching.tick(now_s)
        else:
            events += watching.lines(line.encode() + b"\n", rank=0, now_s=now_s)
    return events


@pytest.fixture
def guard() -> Iterator[MatchGuard]:
    with MatchGuard() as guard:
        yield guard


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_gives_its_findings(case: str) -> None:
    rule, history, expected = HISTORIES[case]

    events = replay(monitor(rule), history)

    assert [(event.kind, event.time_s) for event in events] == expected


@pytest.mark.parametrize(
    ("operator", "beyond"),
    [("gt", [3]), ("gteq", [2, 3]), ("lt", [1]), ("lteq", [1, 2]), ("eq", [2])],
)
def test_each_operator_compares_the_value_with_the_threshold(operator: str, beyond: list[int]) -> None:
    rule = {"name": "r", "pattern": r"v=(\d)", "threshold": 2, "operator": operator}

    matching = [value for value in (1, 2, 3) if monitor(rule).lines(f"v={value}\n".encode(), rank=0, now_s=1)]

    assert matching == beyond


def test_a_finding_carries_what_is_known_of_it() -> None:
    rule = {**SLOW, "data_points": 1, "action": "stop", "message": "look"}

    events = monitor(rule).lines(b"noise\na speed=7.5 b\r\n", rank=3, now_s=12.0)

    assert events == [
        RuleEvent(
            rule="slow",
            kind="threshold",
            action="stop",
            text="a speed=7.5 b",
            time_s=12.0,
            rank=3,
            value=7.5,
            message="look",
        )
    ]


def test_rows_are_counted_for_each_rank() -> None:
    watching = monitor(SLOW)

    events_by_line = [watching.lines(b"speed=1\n", rank=rank, now_s=1) for rank in (0, 1, 0, 1, 0, 1)]

    assert [[event.rank for event in events] for events in events_by_line] == [[], [], [], [], [0], [1]]


def test_many_ranks_with_the_same_fault_are_one_occasion() -> None:
    watching = monitor(FAULT)

    events_by_line = [watching.lines(b"ECC\n" * 10, rank=rank, now_s=rank / 10) for rank in range(512)]

    assert sum(map(len, events_by_line)) == 1
    assert watching.states()[0].matches == 5120


def test_any_rank_in_time_is_in_time() -> None:
    watching = monitor(BOTH)

    events = [*watching.lines(b"step\n", rank=7, now_s=9), *watching.lines(b"step\n", rank=0, now_s=14)]

    assert events == []


def test_several_rules_are_late_in_the_order_of_their_times() -> None:
    watching = monitor({**START, "expected_start_within_s": 30}, BOTH)

    events = watching.tick(100)

    assert [(event.rule, event.time_s) for event in events] == [("both", 10), ("start", 30)]


def test_lateness_is_said_in_words() -> None:
    watching = monitor(BOTH)

    events = [*watching.tick(11), *watching.lines(b"step\n", rank=0, now_s=12), *watching.tick(18)]

    assert [event.text for event in events] == [
        "no line matched within 10 s of the start",
        "no line matched for 5 s",
    ]


def test_the_time_to_the_next_tick_is_that_of_the_earliest_deadline() -> None:
    watching = monitor({**START, "expected_start_within_s": 30}, BOTH, FAULT)

    wait_s = watching.next_s(4.0)

    assert wait_s == pytest.approx(6.0, abs=0.01)
    assert watching.tick(10.0) == []
    assert [event.rule for event in watching.tick(4.0 + (wait_s or 0))] == ["both"]


def test_where_only_lines_can_bring_findings_there_is_nothing_to_wait_for() -> None:
    assert monitor(FAULT, SLOW, AGAIN).next_s(0) is None


def test_a_long_line_is_shown_where_it_matched() -> None:
    line = b"a" * 9000 + b" ECC " + b"b" * 9000 + b"\n"

    (events,) = monitor(FAULT).lines(line, rank=0, now_s=0)

    assert " ECC " in events.text
    assert len(events.text) <= SHOWN + 6


def test_what_follows_the_last_newline_is_no_line() -> None:
    watching = monitor({**AGAIN, "pattern": ".*"})

    watching.lines(b"one\n\nthree\n", rank=0, now_s=0)

    assert watching.states()[0].matches == 3


def test_a_rule_stands_as_it_stands() -> None:
    watching = monitor(START, AGAIN, UNTIL)

    watching.lines(b"step\nover\n", rank=0, now_s=0)

    assert [(state.rule.name, state.matches, state.state) for state in watching.states()] == [
        ("start", 0, "waiting"),
        ("again", 1, "watching"),
        ("both", 1, "asleep"),
    ]


@pytest.mark.parametrize("key", ["pattern", "stop_pattern"])
def test_a_rule_whose_regex_is_switched_off_sleeps_and_stops_no_healthy_job(guard: MatchGuard, key: str) -> None:
    messages: list[str] = []
    rule = {**UNTIL, "name": "endless", key: "step(a+)+b"}
    watching = monitor(rule, {**FAULT, "name": "other"}, guard=guard, messages=messages)
    watching.lines(b"step\n", rank=0, now_s=0)

    events = watching.lines(b"step" + b"a" * 60 + b"\nECC\n", rank=0, now_s=1)

    assert [event.rule for event in events] == ["other"]
    assert watching.states()[0].state == "off"
    assert watching.tick(1000) == []
    assert len(messages) == 1
    assert messages[0].startswith("rule 'endless")
    assert "The job and its other rules go on." in messages[0]


events = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.sampled_from([None, "begin", "step", "ECC", "speed=1", "speed=99", "speed=nan", "over", "noise"]),
    ),
    max_size=40,
)


@given(events, st.lists(st.floats(0, 600), max_size=20))
def test_further_ticks_change_nothing(gaps: list[tuple[float, str | None]], ticks: list[float]) -> None:
    rules = (START, AGAIN, UNTIL, FAULT, SLOW)
    now_s, history = 0.0, []
    for gap_s, line in gaps:
        now_s += gap_s
        history.append((now_s, line))
    more: History = sorted([*history, *((tick, None) for tick in ticks if tick <= now_s)], key=lambda event: event[0])

    events = sorted(replay(monitor(*rules), [*history, (1e6, None)]), key=repr)

    assert sorted(replay(monitor(*rules), [*more, (1e6, None)]), key=repr) == events


def test_twenty_rules_cost_less_than_twenty_searches_where_no_line_matches() -> None:
    values = [
        {"name": f"r{number}", "pattern": rf"key{number}: (\d+)", "threshold": 1, "operator": "gt"}
        for number in range(19)
    ]
    watching = monitor(FAULT, *values)
    patterns = [compiled(state.rule.pattern) for state in watching.states()]
    block = b"INFO step 1234 of 99999: tokens read from shard 17, all is well here.\n" * 3000

    ours_s = cost_s(lambda: watching.lines(block, rank=0, now_s=1))
    theirs_s = cost_s(lambda: [pattern.search(line) for line in block.decode().split("\n") for pattern in patterns])

    assert ours_s < theirs_s  # Seen: 700 and 1,700 ns a line; 2 where the patterns share a rare character.


def cost_s(work: Callable[[], object]) -> float:
    """Return the seconds of CPU that *work* takes, the best of three."""
    costs = []
    for _ in range(3):
        began = time.thread_time()
        work()
        costs.append(time.thread_time() - began)
    return min(costs)
