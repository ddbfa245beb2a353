import os
import re
import signal
import threading
import time

import pytest

from toolkit.metrics.capture import OverrunError, search_stepwise
from toolkit.metrics.guard import MatchGuard

ENDLESS = re.compile(r"(a+)+b")
TEXT = "a" * 60


def overrun(guard: MatchGuard) -> bool:
    guard.arm()
    try:
        guard.inside = True
        guard.match_count += 1
        ENDLESS.search(TEXT)
    except OverrunError:
        return True
    finally:
        guard.disarm()
    return False


def test_an_endless_match_is_interrupted_within_its_budget() -> None:
    with MatchGuard(budget_s=0.02) as guard:
        begun = time.process_time()

        assert overrun(guard)
        assert time.process_time() - begun < 0.5


def test_a_long_text_searched_position_by_position_is_interrupted_too() -> None:
    """The way of CPythons whose `search` sees signals only during one attempt."""
    with MatchGuard(budget_s=0.02) as guard:
        begun = time.process_time()
        guard.arm()
        guard.inside = True
        with pytest.raises(OverrunError):
            search_stepwise(re.compile(r"[a-z]*[a-z]*=([0-9])"), "a" * 30_000)
        guard.disarm()

        assert time.process_time() - begun < 1.0


def test_it_can_be_done_again_and_again() -> None:
    with MatchGuard(budget_s=0.01) as guard:
        assert all(overrun(guard) for _ in range(3))


def test_many_quick_matches_are_not_interrupted_however_long_they_take_together() -> None:
    with MatchGuard(budget_s=0.01) as guard:
        begun = time.process_time()
        guard.arm()
        guard.inside = True
        while time.process_time() - begun < 0.1:
            guard.match_count += 1
            ENDLESS.search("a" * 12)
        guard.disarm()

        assert guard.match_count > 10
        assert overrun(guard)  # It watches on.


def test_nothing_comes_after_disarm() -> None:
    with MatchGuard(budget_s=0.005) as guard:
        guard.arm()
        guard.inside = True
        guard.disarm()
        guard.inside = True
        begun = time.process_time()
        while time.process_time() - begun < 0.05:
            pass

        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_the_handler_that_was_there_is_put_back() -> None:
    def note_signal(number: int, frame: object) -> None:
        """Stand for another user of the signal."""

    old_handler = signal.signal(signal.SIGVTALRM, note_signal)
    try:
        with MatchGuard(budget_s=0.01) as guard:
            untouched = signal.getsignal(signal.SIGVTALRM)
            overrun(guard)

        assert untouched is note_signal
        assert signal.getsignal(signal.SIGVTALRM) is note_signal
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGVTALRM, old_handler)


def test_other_signals_during_a_match_are_noted_and_do_not_end_it() -> None:
    """As in the loop: handlers that do nothing, and a wakeup descriptor that has the numbers."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    handler_before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    sender = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        with MatchGuard(budget_s=0.1) as guard:
            assert overrun(guard)
    finally:
        sender.join()
        signal.set_wakeup_fd(wakeup_before)
        signal.signal(signal.SIGUSR1, handler_before)
        os.close(write_end)

    with os.fdopen(read_end, "rb") as noted:
        assert signal.SIGUSR1 in noted.read()


def test_outside_the_main_thread_it_watches_nothing_and_breaks_nothing() -> None:
    done = []

    def work() -> None:
        with MatchGuard() as guard:
            guard.arm()
            guard.inside = True
            guard.disarm()
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done


@pytest.mark.parametrize("times", [1, 3])
def test_a_child_process_is_not_struck_by_the_timer(times: int) -> None:
    with MatchGuard(budget_s=0.01) as guard:
        for _ in range(times):
            guard.arm()
        child = os.fork()
        if child == 0:
            begun = time.process_time()
            while time.process_time() - begun < 0.05:
                pass
            os._exit(0)
        guard.disarm()
        _, status = os.waitpid(child, 0)

    assert status == 0
