"""Stop signals are one request or two, by their times alone."""

import signal

import pytest

from toolkit.train.supervise.signals import (
    ENDING,
    FORWARDED,
    IGNORED,
    SAME_REQUEST_S,
    STOPPING,
    StopSignals,
    passed_on,
    stops,
)


@pytest.mark.parametrize(
    ("times_s", "new", "insisted"),
    [
        ((5.0,), [True], False),
        ((5.0, 5.0), [True, False], False),
        ((5.0, 5.4, 5.9), [True, False, False], False),
        ((5.0, 5.0 + SAME_REQUEST_S), [True, True], True),
        ((5.0, 5.9, 6.5, 6.5), [True, False, True, True], True),
        ((0.0, 0.2), [True, False], False),
    ],
)
def test_a_stop_signal_is_a_new_wish_if_it_is_the_first_or_comes_a_second_later(
    times_s: tuple[float, ...], new: list[bool], insisted: bool
) -> None:
    requests = StopSignals()

    assert [requests.is_new(signal.SIGTERM, time_s) for time_s in times_s] == new
    assert requests.insisted == insisted


def test_a_notice_never_insists() -> None:
    requests = StopSignals()

    assert [requests.is_new(signal.SIGXCPU, time_s) for time_s in (1.0, 3.0, 9.0)] == [True, False, False]
    assert requests.is_new(signal.SIGTERM, 9.5)


def test_every_signal_has_one_meaning() -> None:
    unstoppable = {signal.SIGKILL, signal.SIGSTOP}
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    handled = {signal.SIGCHLD, signal.SIGTSTP}
    harmless = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}  # By Python or default.
    groups = [set(map(int, group)) for group in (STOPPING, ENDING, FORWARDED, IGNORED)]
    groups += [set(map(int, group)) for group in (unstoppable, faults, handled, harmless)]

    assert sorted(number for group in groups for number in group) == sorted(map(int, signal.valid_signals()))


@pytest.mark.parametrize(
    ("number", "to_ranks"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGQUIT, signal.SIGQUIT),
        (signal.SIGALRM, signal.SIGTERM),
        (signal.SIGRTMIN, signal.SIGTERM),
    ],
)
def test_ranks_get_a_stop_signal_as_it_came_and_sigterm_for_a_notice(number: int, to_ranks: int) -> None:
    assert stops(number)
    assert passed_on(number) == to_ranks
