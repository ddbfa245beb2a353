"""The order in which the module server's tasks get the baton.

By default, by priority:

1. Tasks whose answer has come: mostly they ask the next rank at once, which must not wait for this rank's own work.
2. A task that gave way to those (giving_way.py).
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
Label = tuple[Any, ...]  # The step, the rest of the task's key, and what it does next.


class Task:
    """A microbatch's run of the step function, or a served request.

    *key* is the same in every run of the same step: (step, microbatch, number of the call, ...). Tasks of one *kind*
    mostly make the same calls. `state` is its random number generator's state, None: it goes on with the present one.
    """

    def __init__(self, key: tuple[int, ...], *, is_backward: bool = False, kind: Hashable = None) -> None:
        self.key = key
        self.kind = kind
        self.ahead: Any = None  # Its calls, where some run ahead (ahead.py).
        self.is_backward = is_backward
        self.state: Any = None
        self.reply: Any = None
        self.calls = 0
        self.resumes = 0
        self.unresolved: set[tuple[int, ...]] = set()  # Its calls that have a graph, and had no backward.
        self.fars: list[Callable[[], Any]] = []  # Weak references to tensors whose data is elsewhere (far.py).
        self.begin_ns = 0  # When it got the baton, in a recorded step.
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
    """Why a task can go on, the most urgent first."""

    ANSWERED = 0  # It waited for another rank's answer, which has come.
    GAVE_WAY = 1
    OTHER = 2  # It has not begun, or the gate of "simple" has opened.


class Ready:
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
        """Return what orders it among others, the least first, when it is the turn of *backward* work, or forward."""
        prefers = backward if self.urgency == Urgency.OTHER else True
        return (self.urgency, self.task.is_backward is not prefers, *self._number)


class Order:
    """Which ready task is next: by priority, or as *follow* says, the labels of those that were next before.

    `granted`: the labels of the tasks that got the baton, in order. *tell* is called with each. *gives_way*: a task may
    give way. Where others follow the order none does, since that depends on when answers come.
    """

    def __init__(
        self,
        follow: "deque[Label] | None" = None,
        *,
        tell: Callable[[Label], None] = lambda _: None,
        gives_way: bool = False,
    ) -> None:
        self.follow = follow
        self.gives_way = gives_way
        self.granted: list[Label] = []
        self._tell = tell
        self._is_turn_of_backward = False

    def take(self, ready: list[Ready], step: int) -> Ready | None:
        """Remove the next of *ready* tasks of *step* and return it, None: it is not there yet."""
        mine = [each for each in ready if each.task.key[0] == step]
        if self.follow is None:
            found = min(mine, key=lambda each: each.priority(backward=self._is_turn_of_backward), default=None)
            if found is not None and found.urgency == Urgency.OTHER:
                self._is_turn_of_backward = not found.task.is_backward
        else:
            while self.follow and self.follow[0][0] < step:
                self.follow.popleft()  # Of a step that failed.
            label = self.follow[0] if self.follow else None
            found = next((each for each in mine if each.label == label), None)
            if found is not None:
                self.follow.popleft()
        if found is not None:
            ready.remove(found)
            self.granted.append(found.label)
            self._tell(found.label)
        return found

    def has_better(self, ready: list[Ready], task: Task, step: int) -> bool:
        """Whether *task* of *step*, which has the baton, would go on after another of *ready* if it gave way."""
        if not self.gives_way:
            return False
        own = Ready(task, None, 0, Urgency.GAVE_WAY).priority(backward=False)
        return any(each.priority(backward=False) < own for each in ready if each.task.key[0] == step)


class Follower(Protocol):
    """The scheduler, as far as its order's keeper knows it."""

    @property
    def is_stuck(self) -> bool:
        """Whether tasks are ready and none of them is next in the order that is followed."""

    def follow_no_longer(self) -> None:
        """Go on by priority."""


class Orders:
    """Gives each step its order. *messenger*, *group*: of the tensor parallel ranks, this one among them."""

    def __init__(
        self, messenger: Any, group: tuple[int, ...], *, deterministic: bool, poke: Callable[[], None]
    ) -> None:
        self._deterministic = deterministic
        self._poke = poke
        self._known: dict[Hashable, list[Label]] = {}
        self._under_way: tuple[Hashable, Order] | None = None
        self._labels: deque[Label] = deque()
        self._is_first = group[0] == messenger.me
        self._others = group[1:] if self._is_first else ()
        self._messenger = messenger
        self._stuck_s = 0.0
        if not self._is_first:
            messenger.on(ORDER, self._on_label)

    def begin(self, step: int, kind: Hashable) -> Order:
        """Return the order of *step*. Steps of one *kind* do the same."""
        self._stuck_s = 0.0
        if not self._is_first:
            order = Order(self._labels)
        elif self._deterministic and kind in self._known:
            order = Order(deque((step, *label[1:]) for label in self._known[kind]), tell=self._tell)
        else:
            order = Order(tell=self._tell, gives_way=not (self._deterministic or self._others))
        self._under_way = kind, order
        return order

    def end(self) -> None:
        """The step that began last ended well."""
        if self._under_way is not None and self._deterministic and self._is_first:
            kind, order = self._under_way
            self._known.setdefault(kind, order.granted)
        self._under_way = None

    @property
    def patience_s(self) -> float | None:
        """How often to call `look` while the step runs, None: never."""
        return 1.0 if self._deterministic and self._is_first else None

    def look(self, scheduler: "Follower") -> None:
        """See whether *scheduler* still can follow the order of its step; if not for long, it goes on by priority."""
        self._stuck_s = self._stuck_s + (self.patience_s or 0.0) if scheduler.is_stuck else 0.0
        if self._stuck_s < STUCK_AFTER_S:
            return
        self._under_way = None
        warnings.warn(
            "deterministic_server: this step calls other modules than the first one of its kind did, and goes on in "
            "any order: set deterministic_server to false for models whose calls depend on the data",
            stacklevel=2,
        )
        self._stuck_s = 0.0
        scheduler.follow_no_longer()

    def _tell(self, label: Label) -> None:
        for rank in self._others:
            with contextlib.suppress(PeerLost):  # The step ends by it.
                self._messenger.send(rank, ORDER, None, label)

    def _on_label(self, message: Message) -> None:
        self._labels.append(message.payload)
        self._poke()
