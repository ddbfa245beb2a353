"""Runs the microbatches of a step, on the rank that runs the user's function."""

import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from toolkit.parallelism.parameters import Parameters
from toolkit.rank.modelparallel.errors import PeerLost
from toolkit.rank.modelparallel.torch.messages import AutogradModes, to_remote_error
from toolkit.rank.modelparallel.torch.order import StepOrders, Task
from toolkit.rank.modelparallel.torch.remote import RpcAgent
from toolkit.rank.modelparallel.torch.scheduler import Aborted

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# How long the end of a step waits for its threads after a rank was lost. They end at once, unless one computes. A
# thread that is still inside the autograd engine when the interpreter ends can keep the process from ending.
UNWIND_S = 1.0


class StepRun:
    """Runs *function* with the *arguments* of each microbatch, as step number *step* of *kind* (StepOrders.begin).

    *states*: of each microbatch's random number generator.
    """

    def __init__(
        self,
        agent: RpcAgent,
        orders: StepOrders,
        cfg: Parameters,
        *,
        step: int,
        kind: int,
        function: Callable[..., Any],
        arguments: list[Arguments],
        states: list[Any],
    ) -> None:
        self._agent = agent
        self._scheduler = agent.scheduler
        self._orders = orders
        self._step = step
        self._kind = kind
        self._function = function
        self._arguments = arguments
        self._states = states
        self._is_simple = cfg.pipeline == "simple"
        self._active = len(arguments) if self._is_simple else cfg.active_microbatches or len(arguments)
        self._results: list[Any] = [None] * len(arguments)
        self._modes = AutogradModes.current()
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._pending: deque[int] = deque(range(len(arguments)))
        self._at_gate: list[Task] = []
        self._is_gate_open = not self._is_simple
        self._finished = 0
        self._failure: BaseException | None = None
        self._done = threading.Event()

    def outputs(self) -> list[Any]:
        """Run all microbatches and return the result of each."""
        self._tasks = [Task((self._step, number), kind=self._function) for number in range(len(self._arguments))]
        for task, state in zip(self._tasks, self._states, strict=True):
            task.state = state
        self._scheduler.open(self._step, self._orders.begin(self._step, self._kind))
        for _ in range(min(self._active, len(self._arguments))):
            self._start_next()
        try:
            while not self._done.wait(self._orders.check_interval_s):
                self._orders.check_progress(self._scheduler)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._scheduler.close(within_s=UNWIND_S if isinstance(self._failure, PeerLost) else None)
        if self._failure is not None:
            raise self._failure
        self._orders.end()
        torch.set_rng_state(self._tasks[0].state)
        return self._results

    @property
    def is_random(self) -> bool:
        """True if the step, now over, drew random numbers."""
        return any(not torch.equal(task.state, state) for task, state in zip(self._tasks, self._states, strict=True))

    def pass_gate(self, task: Task) -> None:
        """Return when *task* may begin its backward pass: with "simple", when all microbatches have called this."""
        with self._lock:
            if self._is_gate_open:
                return
            self._at_gate.append(task)
        self._open_gate()
        self._scheduler.wait(task)

    def fail(self, error: BaseException) -> None:
        """Give up the step."""
        with self._lock:
            self._failure = self._failure or error
        self._scheduler.abort(error)
        self._done.set()

    def _start_next(self) -> None:
        with self._lock:
            if not self._pending or self._failure is not None:
                return
            number = self._pending.popleft()
        task = self._tasks[number]
        self._scheduler.start(task, functools.partial(self._context.copy().run, self._microbatch, task))

    def _microbatch(self, task: Task) -> None:
        args, kwargs = self._arguments[task.microbatch]
        self._arguments[task.microbatch] = ((), {})
        try:
            with self._modes.apply():
                self._results[task.microbatch] = self._function(*args, **kwargs)
            self._agent.finish_calls(task)
            if task.awaiting_backward:
                self._agent.forget(task.key)
            task.state = self._scheduler.state_of(task)
        except Aborted:
            return
        except BaseException as error:  # noqa: BLE001 - raised again in the step's own thread
            self.fail(to_remote_error(error))
            return
        self._start_next()
        self._open_gate(finished=1)

    def _open_gate(self, finished: int = 0) -> None:
        with self._lock:
            self._finished += finished
            is_done = self._finished == len(self._arguments)
            opens = not self._is_gate_open and self._finished + len(self._at_gate) == len(self._arguments)
            self._is_gate_open = self._is_gate_open or opens
            waiting, self._at_gate = (self._at_gate, []) if opens else ([], self._at_gate)
        for task in waiting:
            self._scheduler.resume(task)
        if is_done:
            self._done.set()


def make_random_states(count: int) -> list[Any]:
    """Return the random number generators' states of *count* microbatches.

    The first goes on with the present state, which determines the others.
    """
    states = [torch.get_rng_state()]
    if count > 1:
        source = torch.Generator()
        source.set_state(states[0])
        seeds = torch.randint(2**62, (count - 1,), generator=source).tolist()
        states += [torch.Generator().manual_seed(seed).get_state() for seed in seeds]
    return states
