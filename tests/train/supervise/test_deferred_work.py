"""Work that is done once, shortly after the first process was started."""

import math

import pytest

from toolkit.train.supervise.deferred_work import LATER_S, Later


def test_the_work_is_done_once_a_moment_after_the_first_process_was_started() -> None:
    done: list[int] = []
    later = Later(lambda: done.append(1))

    later.serve(10.0)
    assert (done, later.rest_s(10.0)) == ([], math.inf)

    later.begin(10.0)
    later.begin(10.0 + LATER_S)
    later.serve(10.0 + LATER_S / 2)
    assert done == []
    assert later.rest_s(10.0) == pytest.approx(LATER_S)

    later.serve(10.0 + LATER_S)
    later.begin(20.0)
    later.serve(30.0)
    assert (done, later.rest_s(30.0)) == ([1], math.inf)


def test_work_that_fails_is_not_done_again() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise OSError("a disk that is gone")

    later = Later(fail)
    later.begin(0.0)
    for now_s in (1.0, 2.0):
        try:
            later.serve(now_s)
        except OSError:
            assert now_s == 1.0

    assert tries == [1]
