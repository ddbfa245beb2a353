"""The module server's scheduler: one thread for each microbatch or served request, one of which computes at a time.

The right to compute is a token, here called the baton, that one thread holds. A thread that waits for another rank
gives it up, and so does one that gives way (giving_way.py); the next ready one gets it, in the order of order.py.
(Generators cannot suspend inside Module.__call__, greenlets hang in the autograd engine.) A microbatch's random numbers
come from a stream of its own, which travels with its calls: the CPU generator is switched with the baton.

No thread computes without the baton, not even to pass on an answer: the script's own code (the step function, forward
methods, hooks) runs between any two calls, and what it keeps in plain Python is not made for threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.order import Order, Ready, Task, Urgency


class Aborted(BaseException):
    """The step failed elsewhere; this thread's work is given up. No `except Exception` of a model catches it."""


class Scheduler:
    """The baton of this rank. Between steps nobody gets it; what comes then waits for its step."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._lock = threading.Lock()
        self._ready: list[Ready] = []
        self._order = Order()
        self._serial = 0
        self._step = -1  # The number of the step in which tasks run, -1 between steps.
        self._ended = -1  # That of the last one that is over.
        self._holder: Task | None = None
        self._waiting: set[Task] = set()
        self._stream: Task | None = None  # Whose random numbers the generator gives.
        self._idle: list[_Worker] = []
        self._unfinished = 0
        self._failure: BaseException | None = None
        self._all_done = threading.Condition(self._lock)
        self.local = threading.local()

    def open(self, step: int, order: Order) -> None:
        """Let the tasks of *step* run."""
        with self._lock:
            self._failure = None
            self._order = order
            self._step = step
            self._ready = [each for each in self._ready if each.task.key[0] >= step]
            self._grant()

    def close(self, within_s: float | None = None) -> None:
        """End the step: wait until no task runs, *within_s* at most."""
        with self._lock:
            self._all_done.wait_for(lambda: not self._unfinished, within_s)
            self._ended, self._step = self._step, -1
            self._stream = None

    def start(self, task: Task, work: Callable[[], None]) -> bool:
        """Run *work* in a thread of the pool as soon as *task* gets the baton. False: its step is over."""
        with self._lock:
            if task.key[0] <= self._ended:
                return False
            self._serial += 1
            self._ready.append(Ready(task, work, self._serial))
            self._grant()
            return True

    def wait(self, task: Task) -> None:
        """Give up the baton and return when `resume` was called for *task* and it has it again.

        Raises:
            Aborted: the step failed.
        """
        self._note(task)
        with self._lock:
            self._holder = None
            if self._failure is None:
                self._waiting.add(task)
            self._grant()
            is_aborted = self._failure is not None
        if not is_aborted:
            task.gate.acquire()
        if self._failure is not None:
            raise Aborted("the step was given up") from self._failure
        self._switch(task)
        self._begin(task)

    def resume(self, task: Task, urgency: Urgency = Urgency.OTHER) -> None:
        """Let *task*, which waits or soon will, go on."""
        with self._lock:
            if self._failure is not None:
                return
            self._resume(task, urgency)
            self._grant()

    def give_way(self) -> None:
        """Let more urgent tasks go first, if there are any; the calling thread's task goes on after them.

        Raises:
            Aborted: the step failed.
        """
        task = self.task
        if task is None:
            return
        with self._lock:
            if self._failure is not None or not self._order.has_better(self._ready, task, self._step):
                return
            self._resume(task, Urgency.GAVE_WAY)
        self.wait(task)

    def _resume(self, task: Task, urgency: Urgency) -> None:
        task.resumes += 1
        self._serial += 1
        self._ready.append(Ready(task, None, self._serial, urgency))

    def poke(self) -> None:
        """Look again at who is next: the order has learned something."""
        with self._lock:
            self._grant()

    def abort(self, error: BaseException) -> None:
        """Give up the step: every task that waits, or will, raises Aborted."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            self._ready = [each for each in self._ready if each.task.key[0] > self._step >= 0]
            for task in self._waiting:
                task.gate.release()
            self._waiting.clear()

    @property
    def is_stuck(self) -> bool:
        """Whether tasks are ready and none of them is next in the order that is followed."""
        with self._lock:
            is_waiting = any(each.task.key[0] == self._step for each in self._ready)
            return is_waiting and self._holder is None and self._order.follow is not None

    def follow_no_longer(self) -> None:
        """Go on by priority."""
        with self._lock:
            self._order = Order()
            self._grant()

    @property
    def task(self) -> Task | None:
        """The calling thread's task, None: it has none."""
        return getattr(self.local, "task", None)

    def state_of(self, task: Task) -> Any:
        """Return the state of *task*'s random number generator; it has the baton."""
        self._switch(task)
        return torch.get_rng_state()

    def adopt(self, task: Task, state: Any) -> None:
        """Set the state of *task*'s random number generator; it has the baton."""
        self._switch(task)
        torch.set_rng_state(state)

    def turn(self, task: Task, *, is_backward: bool) -> None:
        """*task*, which has the baton, begins or ends its backward pass."""
        self._note(task)
        task.is_backward = is_backward
        self._begin(task)

    def run_next(self, worker: "_Worker", task: Task) -> "tuple[Task, Callable[[], None]] | None":
        """End *task*. Return what *worker* runs next; None: it goes to sleep in the pool."""
        self._note(task)
        with self._lock:
            self._holder = None
            self._unfinished -= 1
            if not self._unfinished:
                self._all_done.notify_all()
            following = self._take()
            if following is not None and following.work is not None:
                return following.task, following.work
            self._idle.append(worker)
            if following is not None:
                self._hand(following)
            return None

    def _take(self) -> Ready | None:
        """Give the baton to the next task, for which the caller must then see."""
        if self._step < 0 or self._failure is not None or not self._ready:
            return None
        found = self._order.take(self._ready, self._step)
        if found is None:
            return None
        self._holder = found.task
        if found.work is not None:
            self._unfinished += 1
        return found

    def _grant(self) -> None:
        if self._holder is None:
            found = self._take()
            if found is not None:
                self._hand(found)

    def _hand(self, ready: Ready) -> None:
        if ready.work is None:
            self._waiting.discard(ready.task)
            ready.task.gate.release()
        else:
            worker = self._idle.pop() if self._idle else _Worker(self)
            worker.run_this(ready.task, ready.work)

    def _switch(self, task: Task) -> None:
        if self._stream is task:
            return
        if self._stream is not None:
            self._stream.state = torch.get_rng_state()
        if task.state is not None:
            torch.set_rng_state(task.state)
        self._stream = task

    def enter(self, task: Task) -> AbstractContextManager[object]:
        """Make *task* the calling thread's; in the block, what it saves for the backward pass is counted."""
        self.local.task = task
        self._switch(task)
        self._begin(task)
        return contextlib.nullcontext() if self.recorder is None else self.recorder.watching()

    def _begin(self, task: Task) -> None:
        task.begin_ns = time.monotonic_ns() if self.recorder is not None and self.recorder.is_recording else 0

    def _note(self, task: Task) -> None:
        """Record what *task* did since it got the baton."""
        if task.begin_ns and self.recorder is not None:
            self.recorder.add("backward" if task.is_backward else "forward", task.microbatch, task.begin_ns)
            task.begin_ns = 0


class _Worker(threading.Thread):
    """A thread of the pool."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(name="smp-worker", daemon=True)
        self._scheduler = scheduler
        self._gate = threading.Lock()
        self._gate.acquire()
        self._next: tuple[Task, Callable[[], None]] | None = None
        self.start()

    def run_this(self, task: Task, work: Callable[[], None]) -> None:
        """Wake the thread for *work*."""
        self._next = (task, work)
        self._gate.release()

    def run(self) -> None:
        # One backward pass belongs to one thread, also where a device has threads of its own in the autograd engine.
        torch.autograd.set_multithreading_enabled(False)
        while True:
            self._gate.acquire()
            following = self._next
            while following is not None:
                task, work = following
                following = self._next = None
                try:
                    with self._scheduler.enter(task):
                        work()
                finally:
                    following = self._scheduler.run_next(self, task)
                task = work = None  # type: ignore[assignment]  # Nothing of a finished task stays alive here.
