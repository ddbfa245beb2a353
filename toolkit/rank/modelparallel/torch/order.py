"""The order in which the module server's tasks get the execution token.

By default, by priority:

1. Tasks whose answer has come: mostly they ask the next rank at once, which must not wait for this rank's own work.
2. A task that yielded the token to those (yielding.py).
3. Forward and backward work by turns, as in one-forward-one-backward schedules. Backward first would empty the queue of
   a rank: while partition 0 does its own long backward pass, nobody there turns results into the next requests, and a
   rank that has served its backward requests first has no forward request left to fill the time with (a simulation
   of two devices and the bench agree: of 16 microbatches a step was idle for 9.5 instead of 5.9 %).
4. Lower numbers of microbatches first.

With tensor parallelism all ranks of a tensor parallel group must call their collectives in one
order, so that the others follow the first of them. deterministic_server: every step follows the first of its kind.
"""

import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Any, Protocol

from toolkit.rank.modelparallel.errors import PeerLost
from toolkit.rank.modelparallel.messenger import Message

ORDER = "smp.order"
STUCK_AFTER_S = 30.0
Label = tuple[Any, ...]  # The step, the rest of the task's key, and "start", or "resume" and a number.


class Task:
    """A microbatch's run of the step function, or a served request.

    *key* is the same in every run of the same step: (step, microbatch, number of the call, ...). Tasks of one *kind*
    mostly make the same calls.
    """

    def __init__(self, key: tuple[int, ...], *, is_backward: bool = False, kind: Hashable = None) -> None:
        self.key = key
        self.kind = kind
        self.speculation: Any = None  # Its calls, where some run speculatively (speculation.Speculation).
        self.is_backward = is_backward
        self.state: Any = None  # Its random number generator's state, None: it goes on with the present one.
        self.reply: Any = None
        self.calls = 0
        self.resumes = 0
        self.awaiting_backward: set[tuple[int, ...]] = set()  # Its calls that have a graph, and had no backward pass.
        self.remote_outputs: list[Callable[[], Any]] = []  # Weak references to remote tensors (remote_tensor.py).
        self.begin_ns = 0  # When it got the token, in a recorded step.
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def microbatch(self) -> int:
        """The number of its microbatch, from 0."""
        return self.key[1]

    def next_key(self) -> tuple[int, ...]:
        """Return the key of the next request that this task sends."""
        self.calls += 1
        return (*self.key, self.calls)


class Urgency(IntEnum):
    """The reason why a task can go on, the most urgent first."""

    ANSWERED = 0  # It waited for another rank's answer, which has arrived.
    YIELDED = 1
    OTHER = 2  # It has not begun, or the gate of "simple" has opened.


class ReadyTask:
    """A task that can go on: with *work* in a thread of the pool if it has not begun."""

    def __init__(
        self, task: Task, work: Callable[[], None] | None, serial: int, urgency: Urgency = Urgency.OTHER
    ) -> None:
        self.task = task
        self.work = work
        self.urgency = urgency
        self.label: Label = (*task.key, "resume", task.resumes) if work is None else (*task.key, "start")
        self._number = (task.microbatch, serial)

    def priority(self, *, backward: bool) -> tuple[int, bool, int, int]:
        """Return the task's sort key; the least is next. *backward*: it is the turn of backward work."""
        preferred = backward if self.urgency == Urgency.OTHER else True
        return (self.urgency, self.task.is_backward is not preferred, *self._number)


class TaskOrder:
    """Decides which ready task is next: by priority, or in the order of *follow*, the labels of an earlier step.

    `granted`: the labels of the tasks that got the token, in order. *on_grant* is called with each. *may_yield*: tasks
    may yield the token. They may not if others follow the order, since yielding depends on when answers arrive.
    """

    def __init__(
        self,
        follow: "deque[Label] | None" = None,
        *,
        on_grant: Callable[[Label], None] = lambda _: None,
        may_yield: bool = False,
    ) -> None:
        self.follow = follow
        self.may_yield = may_yield
        self.granted: list[Label] = []
        self._on_grant = on_grant
        self._is_turn_of_backward = False

    def pop_next(self, ready: list[ReadyTask], step: int) -> ReadyTask | None:
        """Remove the next of *ready* tasks of *step* and return it, None: it is not ready yet."""
        candidates = [candidate for candidate in ready if candidate.task.key[0] == step]
        if self.follow is None:
            backward = self._is_turn_of_backward
            following = min(candidates, key=lambda candidate: candidate.priority(backward=backward), default=None)
            if following is not None and following.urgency == Urgency.OTHER:
                self._is_turn_of_backward = not following.task.is_backward
        else:
            while self.follow and self.follow[0][0] < step:
                self.follow.popleft()  # Of a step that failed.
            label = self.follow[0] if self.follow else None
            following = next((candidate for candidate in candidates if candidate.label == label), None)
            if following is not None:
                self.follow.popleft()
        if following is not None:
            ready.remove(following)
            self.granted.append(following.label)
            self._on_grant(following.label)
        return following

    def should_yield(self, ready: list[ReadyTask], task: Task, step: int) -> bool:
        """Return whether another of *ready* would be next if *task* of *step*, which has the token, yielded it."""
        if not self.may_yield:
            return False
        priority = ReadyTask(task, None, 0, Urgency.YIELDED).priority(backward=False)
        return any(
            candidate.priority(backward=False) < priority for candidate in ready if candidate.task.key[0] == step
        )


class OrderedScheduler(Protocol):
    """The part of the scheduler that StepOrders uses."""

    @property
    def is_stuck(self) -> bool:
        """True if tasks are ready and none of them is next in the order that is followed."""

    def drop_order(self) -> None:
        """Continue by priority."""


class StepOrders:
    """Gives each step its order.

    *group*: the tensor parallel ranks, this one among them, which *messenger* connects. *on_label* is called when a
    label of the first of them has arrived.
    """

    def __init__(
        self, messenger: Any, group: tuple[int, ...], *, deterministic: bool, on_label: Callable[[], None]
    ) -> None:
        self._deterministic = deterministic
        self._label_callback = on_label
        self._recorded: dict[Hashable, list[Label]] = {}
        self._under_way: tuple[Hashable, TaskOrder] | None = None
        self._labels: deque[Label] = deque()
        self._is_first = group[0] == messenger.me
        self._followers = group[1:] if self._is_first else ()
        self._messenger = messenger
        self._stuck_s = 0.0
        if not self._is_first:
            messenger.on(ORDER, self._on_label)

    def begin(self, step: int, kind: Hashable) -> TaskOrder:
        """Return the order of *step*. Steps of one *kind* do the same."""
        self._stuck_s = 0.0
        if not self._is_first:
            order = TaskOrder(self._labels)
        elif self._deterministic and kind in self._recorded:
            order = TaskOrder(deque((step, *label[1:]) for label in self._recorded[kind]), on_grant=self._send_label)
        else:
            order = TaskOrder(on_grant=self._send_label, may_yield=not (self._deterministic or self._followers))
        self._under_way = kind, order
        return order

    def end(self) -> None:
        """Note that the step that began last has succeeded."""
        if self._under_way is not None and self._deterministic and self._is_first:
            kind, order = self._under_way
            self._recorded.setdefault(kind, order.granted)
        self._under_way = None

    @property
    def check_interval_s(self) -> float | None:
        """The interval in which to call `check_progress` while the step runs, None: never."""
        return 1.0 if self._deterministic and self._is_first else None

    def check_progress(self, scheduler: "OrderedScheduler") -> None:
        """Let *scheduler* continue by priority if it could not follow the order of its step for STUCK_AFTER_S."""
        self._stuck_s = self._stuck_s + (self.check_interval_s or 0.0) if scheduler.is_stuck else 0.0
        if self._stuck_s < STUCK_AFTER_S:
            return
        self._under_way = None
        warnings.warn(
            "deterministic_server: this step calls other modules than the first one of its kind did, and goes on in "
            "any order: set deterministic_server to false for models whose calls depend on the data",
            stacklevel=2,
        )
        self._stuck_s = 0.0
        scheduler.drop_order()

    def _send_label(self, label: Label) -> None:
        for rank in self._followers:
            with contextlib.suppress(PeerLost):  # The step fails because of it.
                self._messenger.send(rank, ORDER, None, label)

    def _on_label(self, message: Message) -> None:
        self._labels.append(message.payload)
        self._label_callback()
