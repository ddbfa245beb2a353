"""The module server's scheduler: one thread for each microbatch or served request, one of which computes at a time.

The right to compute is a token, here called the baton, that one thread holds. A thread that waits for another rank
gives it up; the next ready one gets it: backward before forward, running
microbatches before new ones, lower numbers before higher. (Generators cannot suspend inside Module.__call__, greenlets
hang in the autograd engine.) A microbatch's random numbers come from a stream of its own, which travels with its
calls: the CPU generator is switched with the baton.

A thread that gets an answer only to pass it on, or to compute a loss, need not wait until another one has computed: it
goes on beside it, one such thread at a time. As soon as it uses a parameter, draws a random number or changes a tensor
in place, it waits for the baton (Guard), and has it from the beginning in the following microbatches. So an answer that
the caller hands on to a third rank does not wait for the caller's own computing.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from toolkit.modelparallel.errors import SMPError
from toolkit.modelparallel.recorder import Recorder
from toolkit.modelparallel.torch.order import Order, Ready, Section, Task


class Aborted(SMPError):  # noqa: N818 - an end, like asyncio.CancelledError
    """The step failed elsewhere; this thread's work is given up."""


# A thread without the baton that computes for less is not recorded: it only passed something on.
RECORDED_FROM_NS = 1_000_000


class Scheduler:
    """The baton of this rank. Between steps nobody gets it; what comes then waits for its step.

    *may_overlap*: answers may be handled beside the task that has the baton.
    """

    def __init__(self, *, may_overlap: bool = True) -> None:
        self.recorder: Recorder | None = None
        self._lock = threading.Lock()
        self._ready: list[Ready] = []
        self._order = Order()
        self._serial = 0
        self._step = -1  # The number of the step in which tasks run, -1 between steps.
        self._holder: Task | None = None
        self._waiting: set[Task] = set()
        self._stream: Task | None = None  # Whose random numbers the generator gives.
        self._stream_lock = threading.Lock()
        self._may_overlap = may_overlap
        self._beside: Task | None = None  # The one task that runs without the baton.
        self._answered: list[Task] = []  # Those that may run so, once they wait.
        self._need_baton: set[Section] = set()
        self._idle: list[_Worker] = []
        self._unfinished = 0
        self._failure: BaseException | None = None
        self._all_done = threading.Condition(self._lock)
        self.local = threading.local()

    def open(self, step: int, order: Order) -> None:
        """Let the tasks of *step* run."""
        with self._lock:
            self._failure = None
            self._beside = None
            self._answered.clear()
            self._order = order
            self._step = step
            self._ready = [each for each in self._ready if each.task.key[0] >= step]
            self._grant()

    def close(self, within_s: float | None = None) -> None:
        """End the step: wait until no task runs, *within_s* at most."""
        with self._lock:
            self._all_done.wait_for(lambda: not self._unfinished, within_s)
            self._step = -1
            self._stream = None

    def start(self, task: Task, work: Callable[[], None]) -> None:
        """Run *work* in a thread of the pool as soon as *task* gets the baton."""
        with self._lock:
            self._serial += 1
            self._ready.append(Ready(task, work, self._serial))
            self._grant()

    def wait(self, task: Task) -> None:
        """Give up the baton and return when `resume` was called for *task* and it has it again, or does not need it.

        Raises:
            Aborted: the step failed.
        """
        self._leave(task)
        with self._lock:
            self._give_up(task)
            if self._failure is None:
                self._waiting.add(task)
            self._grant()
            is_aborted = self._failure is not None
        self._sleep(task, is_aborted)

    def resume(self, task: Task, *, beside: bool = False) -> None:
        """Let *task*, which waits or soon will, go on; *beside*: without the baton, if that is possible."""
        with self._lock:
            if self._failure is not None:
                return
            if beside and self._may_overlap:
                self._answered.append(task)
            else:
                task.resumes += 1
                self._serial += 1
                self._ready.append(Ready(task, None, self._serial))
            self._grant()

    def needs_baton(self, section: "Section") -> bool:
        """Whether what tasks do in *section* was seen to need the baton."""
        return not self._may_overlap or section in self._need_baton

    def guard(self, task: Task) -> None:
        """See that *task* takes the baton when it needs it. It then is in `section_of` it."""
        if task.is_beside:
            task.guard = Guard(self, task)
            task.guard.__enter__()

    def take_baton(self, task: Task) -> None:
        """Return when *task* has the baton; tasks in its section have it at once from now on.

        Raises:
            Aborted: the step failed.
        """
        if not task.is_beside:
            return
        self._note(task)
        with self._lock:
            self._need_baton.add(task.section)
            self._give_up(task)
            if self._failure is None:
                self._waiting.add(task)
                self._serial += 1
                self._ready.append(Ready(task, None, self._serial))
            self._grant()
            is_aborted = self._failure is not None
        self._sleep(task, is_aborted)

    def _sleep(self, task: Task, is_aborted: bool) -> None:
        if not is_aborted:
            task.gate.acquire()
        if self._failure is not None:
            raise Aborted("the step was given up") from self._failure
        if not task.is_beside:
            self._switch(task)
        self._begin(task)

    def _leave(self, task: Task) -> None:
        """*task* stops here."""
        self._note(task)
        current: Any = _get_current_dispatch_mode()
        if task.guard is not None and task.guard is current:
            task.guard = None
            current.__exit__(None, None, None)

    def _give_up(self, task: Task) -> None:
        """*task* has the baton no more, nor runs beside it."""
        if self._holder is task:
            self._holder = None
        if self._beside is task:
            self._beside = None
        task.is_beside = False

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
            self._answered.clear()
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
        """Return the state of *task*'s random number generator."""
        if not task.is_beside:
            self._switch(task)
        with self._stream_lock:
            return torch.get_rng_state() if self._stream is task else task.state

    def adopt(self, task: Task, state: Any) -> None:
        """Set the state of *task*'s random number generator."""
        if task.is_beside:
            with self._stream_lock:
                if self._stream is task:
                    self._stream = None
                task.state = state
        else:
            self._switch(task)
            torch.set_rng_state(state)

    def turn(self, task: Task, *, is_backward: bool) -> None:
        """*task* begins or ends its backward pass; it has the baton afterwards, and before it ends."""
        if not is_backward:
            self.take_baton(task)
        self._leave(task)  # The autograd engine would keep the guard for the whole pass.
        task.is_backward = is_backward
        self._begin(task)

    def run_next(self, worker: "_Worker", task: Task) -> "tuple[Task, Callable[[], None]] | None":
        """End *task*. Return what *worker* runs next; None: it goes to sleep in the pool."""
        self._leave(task)
        with self._lock:
            self._give_up(task)
            self._unfinished -= 1
            if not self._unfinished:
                self._all_done.notify_all()
            following = self._take()
            if following is not None and following.work is not None:
                self._grant()
                return following.task, following.work
            self._idle.append(worker)
            if following is not None:
                self._hand(following)
            self._grant()
            return None

    def _take(self) -> Ready | None:
        """Give the baton to the next task, for which the caller must then see."""
        if self._holder is not None or self._step < 0 or self._failure is not None or not self._ready:
            return None
        # An answer may be here before its task waits for it: only then can that task get the baton.
        able = [each for each in self._ready if each.work is not None or each.task in self._waiting]
        found = self._order.take(able, self._step)
        if found is None:
            return None
        self._ready.remove(found)
        self._holder = found.task
        if found.work is not None:
            self._unfinished += 1
        return found

    def _grant(self) -> None:
        found = self._take()
        if found is not None:
            self._hand(found)
        if self._beside is None and self._failure is None:
            task = next((task for task in self._answered if task in self._waiting), None)
            if task is not None:
                self._answered.remove(task)
                self._waiting.discard(task)
                self._beside = task
                task.is_beside = True
                task.gate.release()

    def _hand(self, ready: Ready) -> None:
        if ready.work is None:
            self._waiting.discard(ready.task)
            ready.task.gate.release()
        else:
            worker = self._idle.pop() if self._idle else _Worker(self)
            worker.run_this(ready.task, ready.work)

    def _switch(self, task: Task) -> None:
        with self._stream_lock:
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
        """Record what *task* did since it went on."""
        if task.begin_ns and self.recorder is not None:
            if not task.is_beside or time.monotonic_ns() - task.begin_ns >= RECORDED_FROM_NS:
                self.recorder.add("backward" if task.is_backward else "forward", task.microbatch, task.begin_ns)
            task.begin_ns = 0


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the operations of the thread of *task*, which runs without the baton, and takes it where one needs it."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scheduler = scheduler
        self._task = task

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call *func*, with the baton if need be."""
        kwargs = kwargs or {}
        if self._task.is_beside and (_changes(func) or any(map(_is_parameter, (*args, *kwargs.values())))):
            self._scheduler.take_baton(self._task)
        return func(*args, **kwargs)


@functools.cache
def _changes(func: Any) -> bool:
    """Whether the operation *func* draws random numbers or changes a tensor."""
    return torch.Tag.nondeterministic_seeded in func.tags or func._schema.is_mutable


def _is_parameter(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_parameter, value))
    return isinstance(value, torch.nn.Parameter)


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
