"""Work that is done once, shortly after the first process was started."""

import math

import pytest

from toolkit.train.supervise.deferred_work import DEFERRED_S, DeferredWork


def test_the_work_is_done_once_a_moment_after_the_first_process_was_started() -> None:
    done: list[int] = []
    deferred = DeferredWork(lambda: done.append(1))

    deferred.serve(10.0)
    assert (done, deferred.due_in_s(10.0)) == ([], math.inf)

    deferred.note_start(10.0)
    deferred.note_start(10.0 + DEFERRED_S)
    deferred.serve(10.0 + DEFERRED_S / 2)
    assert done == []
    assert deferred.due_in_s(10.0) == pytest.approx(DEFERRED_S)

    deferred.serve(10.0 + DEFERRED_S)
    deferred.note_start(20.0)
    deferred.serve(30.0)
    assert (done, deferred.due_in_s(30.0)) == ([1], math.inf)


def test_work_that_fails_is_not_done_again() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("a disk that is gone")

    deferred = DeferredWork(fail)
    deferred.note_start(0.0)
    for now_s in (1.0, 2.0):
        try:
            deferred.serve(now_s)
        except OSError:
            assert now_s == 1.0

    assert tries == [1]
