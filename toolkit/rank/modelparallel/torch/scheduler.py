"""The module server's scheduler: one thread for each microbatch or served request, one of which computes at a time.

The right to compute is the execution token, which one thread holds. A thread that waits for another rank
releases it, and so does one that yields (yielding.py); the next ready one gets it, in the order of order.py.
(Generators cannot suspend inside Module.__call__, greenlets hang in the autograd engine.) A microbatch's random numbers
come from a stream of its own, which travels with its calls: the CPU generator is switched with the token.

No thread computes without the token, not even to pass on an answer: the script's own code (the step function, forward
methods, hooks) runs between any two calls, and its plain Python objects are not safe for threads.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.order import ReadyTask, Task, TaskOrder, Urgency


class Aborted(BaseException):
    """The step failed elsewhere and this thread must end. No `except Exception` of a model catches it."""


class Scheduler:
    """Gives the execution token of this rank to one task at a time, between steps to none."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._lock = threading.Lock()
        self._ready: list[ReadyTask] = []
        self._order = TaskOrder()
        self._serial = 0
        self._step = -1  # The number of the step in which tasks run, -1 between steps.
        self._last_step = -1  # The number of the last step that is over.
        self._holder: Task | None = None
        self._waiting: set[Task] = set()
        self._stream: Task | None = None  # The task whose random numbers the generator draws.
        self._idle: list[_Worker] = []
        self._unfinished = 0
        self._failure: BaseException | None = None
        self._all_done = threading.Condition(self._lock)
        self.local = threading.local()

    def open(self, step: int, order: TaskOrder) -> None:
        """Let the tasks of *step* run."""
        with self._lock:
            self._failure = None
            self._order = order
            self._step = step
            self._ready = [ready for ready in self._ready if ready.task.key[0] >= step]
            self._grant_token()

    def close(self, within_s: float | None = None) -> None:
        """End the step: wait until no task runs, *within_s* at most."""
        with self._lock:
            self._all_done.wait_for(lambda: not self._unfinished, within_s)
            self._last_step, self._step = self._step, -1
            self._stream = None

    def start(self, task: Task, work: Callable[[], None]) -> bool:
        """Run *work* in a thread of the pool as soon as *task* gets the token. False: its step is over."""
        with self._lock:
            if task.key[0] <= self._last_step:
                return False
            self._serial += 1
            self._ready.append(ReadyTask(task, work, self._serial))
            self._grant_token()
            return True

    def wait(self, task: Task) -> None:
        """Release the token and return when `resume` was called for *task* and it has the token again.

        Raises:
            Aborted: the step failed.
        """
        self._record(task)
        with self._lock:
            self._holder = None
            if self._failure is None:
                self._waiting.add(task)
            self._grant_token()
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
            self._grant_token()

    def yield_token(self) -> None:
        """Let more urgent tasks go first, if there are any; the calling thread's task continues after them.

        Raises:
            Aborted: the step failed.
        """
        task = self.task
        if task is None:
            return
        with self._lock:
            if self._failure is not None or not self._order.should_yield(self._ready, task, self._step):
                return
            self._resume(task, Urgency.YIELDED)
        self.wait(task)

    def _resume(self, task: Task, urgency: Urgency) -> None:
        task.resumes += 1
        self._serial += 1
        self._ready.append(ReadyTask(task, None, self._serial, urgency))

    def reconsider(self) -> None:
        """Grant the token if a task is next now; called when the order has changed."""
        with self._lock:
            self._grant_token()

    def abort(self, error: BaseException) -> None:
        """Give up the step: every task that waits, or will wait, raises Aborted."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            self._ready = [ready for ready in self._ready if ready.task.key[0] > self._step >= 0]
            for task in self._waiting:
                task.gate.release()
            self._waiting.clear()

    @property
    def is_stuck(self) -> bool:
        """True if tasks are ready and none of them is next in the order that is followed."""
        with self._lock:
            is_waiting = any(ready.task.key[0] == self._step for ready in self._ready)
            return is_waiting and self._holder is None and self._order.follow is not None

    def drop_order(self) -> None:
        """Continue by priority."""
        with self._lock:
            self._order = TaskOrder()
            self._grant_token()

    @property
    def task(self) -> Task | None:
        """The calling thread's task, None if it has none."""
        return getattr(self.local, "task", None)

    def state_of(self, task: Task) -> Any:
        """Return the state of *task*'s random number generator; the task has the token."""
        self._switch(task)
        return torch.get_rng_state()

    def set_state(self, task: Task, state: Any) -> None:
        """Set the state of *task*'s random number generator; the task has the token."""
        self._switch(task)
        torch.set_rng_state(state)

    def set_backward(self, task: Task, *, is_backward: bool) -> None:
        """Note that *task*, which has the token, begins or ends its backward pass."""
        self._record(task)
        task.is_backward = is_backward
        self._begin(task)

    def run_next(self, worker: "_Worker", task: Task) -> "tuple[Task, Callable[[], None]] | None":
        """End *task*. Return the next task and work of *worker*; None: it sleeps in the pool."""
        self._record(task)
        with self._lock:
            self._holder = None
            self._unfinished -= 1
            if not self._unfinished:
                self._all_done.notify_all()
            following = self._pop_next()
            if following is not None and following.work is not None:
                return following.task, following.work
            self._idle.append(worker)
            if following is not None:
                self._hand_token(following)
            return None

    def _pop_next(self) -> ReadyTask | None:
        """Make the next task the holder of the token and return it; the caller must then run or wake it."""
        if self._step < 0 or self._failure is not None or not self._ready:
            return None
        ready = self._order.pop_next(self._ready, self._step)
        if ready is None:
            return None
        self._holder = ready.task
        if ready.work is not None:
            self._unfinished += 1
        return ready

    def _grant_token(self) -> None:
        if self._holder is None:
            ready = self._pop_next()
            if ready is not None:
                self._hand_token(ready)

    def _hand_token(self, ready: ReadyTask) -> None:
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
        """Make *task* the calling thread's, and count the tensors that it saves for the backward pass in the block."""
        self.local.task = task
        self._switch(task)
        self._begin(task)
        return contextlib.nullcontext() if self.recorder is None else self.recorder.watching()

    def _begin(self, task: Task) -> None:
        task.begin_ns = time.monotonic_ns() if self.recorder is not None and self.recorder.is_recording else 0

    def _record(self, task: Task) -> None:
        """Record the work of *task* since it got the token."""
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
