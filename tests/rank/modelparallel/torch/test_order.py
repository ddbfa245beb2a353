"""The order in which the module server's tasks get the execution token."""

import functools
import queue
from collections import deque

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WITHIN_S = 60


class Alone:
    """The messenger of a rank without others."""

    me = 0


def test_tasks_of_a_step_run_forward_and_backward_by_turns_each_by_number() -> None:
    from toolkit.rank.modelparallel.torch.order import Task, TaskOrder
    from toolkit.rank.modelparallel.torch.scheduler import Scheduler

    scheduler, ran = Scheduler(), queue.SimpleQueue[str]()
    for name, task in (
        ("forward 1", Task((0, 1))),
        ("forward 0", Task((0, 0))),
        ("next step", Task((1, 0), is_backward=True)),
        ("forward 2", Task((0, 2, 1))),
        ("backward 6", Task((0, 6, 1), is_backward=True)),
        ("backward 5", Task((0, 5, 1), is_backward=True)),
    ):
        scheduler.start(task, functools.partial(ran.put, name))
    assert ran.empty()

    scheduler.open(0, TaskOrder())

    started = [ran.get(timeout=WITHIN_S) for _ in range(5)]
    assert started == ["forward 0", "backward 5", "forward 1", "backward 6", "forward 2"]
    scheduler.close(WITHIN_S)
    scheduler.open(1, TaskOrder())
    assert ran.get(timeout=WITHIN_S) == "next step"
    scheduler.close(WITHIN_S)


def test_answers_come_first_then_tasks_that_yielded_to_them_and_the_turn_does_not_change() -> None:
    from toolkit.rank.modelparallel.torch.order import ReadyTask, Task, TaskOrder, Urgency

    order = TaskOrder()
    waiting = [
        ReadyTask(Task((0, number), is_backward=is_backward), lambda: None, 0, urgency)
        for number, is_backward, urgency in (
            (0, True, Urgency.OTHER),
            (1, False, Urgency.OTHER),
            (2, True, Urgency.YIELDED),
            (3, False, Urgency.ANSWERED),
            (4, True, Urgency.ANSWERED),
        )
    ]

    ordered = [order.pop_next(waiting, 0) for _ in range(5)]

    assert [ready and ready.task.microbatch for ready in ordered] == [4, 3, 2, 1, 0]


def test_a_step_that_deviates_from_a_deterministic_order_goes_on_with_a_warning() -> None:
    from toolkit.rank.modelparallel.torch.order import STUCK_AFTER_S, StepOrders, Task
    from toolkit.rank.modelparallel.torch.scheduler import Scheduler

    scheduler, ran = Scheduler(), queue.SimpleQueue[int]()
    orders = StepOrders(Alone(), (0,), deterministic=True, on_label=scheduler.reconsider)

    def steps(step: int, *microbatches: int) -> None:
        scheduler.open(step, orders.begin(step, "kind"))
        for number in microbatches:
            scheduler.start(Task((step, number)), functools.partial(ran.put, number))

    steps(0, 1, 0)
    first = [ran.get(timeout=WITHIN_S), ran.get(timeout=WITHIN_S)]
    scheduler.close(WITHIN_S)
    orders.end()
    steps(1, 0, 1)
    assert [ran.get(timeout=WITHIN_S), ran.get(timeout=WITHIN_S)] == first
    scheduler.close(WITHIN_S)
    orders.end()
    steps(2, 7)
    assert ran.empty()

    assert scheduler.is_stuck
    assert orders.check_interval_s == 1
    with pytest.warns(UserWarning, match="this step calls other modules than the first one of its kind did"):
        for _ in range(int(STUCK_AFTER_S)):
            orders.check_progress(scheduler)

    assert ran.get(timeout=WITHIN_S) == 7
    scheduler.close(WITHIN_S)


def test_followers_take_the_first_tensor_parallel_ranks_order_and_drop_what_a_failed_step_left() -> None:
    from toolkit.rank.modelparallel.torch.order import ReadyTask, Task, TaskOrder

    labels = deque([(0, 9, "start"), (1, 1, "start"), (1, 0, "start")])
    ready = [ReadyTask(Task((1, number)), lambda: None, number) for number in (0, 1)]
    order = TaskOrder(labels)

    ordered = [order.pop_next(ready, 1) for _ in range(3)]

    assert [ready_task and ready_task.task.microbatch for ready_task in ordered] == [1, 0, None]
    assert not labels
