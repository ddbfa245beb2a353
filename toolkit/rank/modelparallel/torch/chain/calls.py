"""The user's step function, once for each microbatch, in a thread that the schedule stops and resumes."""

import contextvars
import functools
import queue
from collections.abc import Callable
from typing import Any, Literal

import torch

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.messages import Setting

Event = Literal["model", "backward", "done", "raised"]
FOUND: dict[Event, str] = {
    "model": "a call of the model",
    "backward": "a call of model.backward",
    "done": "the end of the step function",
    "raised": "an exception",
}
_CANCEL = object()


class _Cancelled(BaseException):
    pass


class DeviationError(SMPError):
    """A step does not do what the first one of its kind did."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"expected this step to run as the first step with such arguments did, found {found}. Steps of a chain of "
            "modules follow the first one. Set TOOLKIT_SMP_CHAIN=off to run the job without this shortcut"
        )


class Call:
    """One call of *function* with *arguments*, those of one microbatch.

    The schedule's thread calls `before_forward`, `after_forward` and `after_backward`; `result` is then what the
    function returned. *has_backward*: it is expected to call model.backward, and the model in the modes of *setting*.
    The loss's gradient is multiplied by *scale*.
    """

    def __init__(
        self,
        model: Any,
        function: Callable[..., Any],
        arguments: tuple[Any, Any],
        *,
        has_backward: bool,
        setting: Setting,
        scale: float,
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        self._model = model
        self._function = function
        self._arguments = arguments
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[Event, Any]] = queue.SimpleQueue()
        self._has_backward = has_backward
        self._setting = setting
        self._scale = scale
        self.result: Any = None

    def before_forward(self) -> Any:
        """Run the function until it calls the model; return the model's argument."""
        args, kwargs = self._advance("model")
        if len(args) != 1 or kwargs:
            raise DeviationError(f"a call of the model with {len(args)} and {len(kwargs)} keyword arguments")
        return args[0]

    def after_forward(self, output: Any) -> Any:
        """Run it on with the model's *output* until it calls model.backward; return the loss. None: it has ended."""
        if not self._has_backward:
            self.result = self._advance("done", output)
            return None
        tensors, grad_tensors = self._advance("backward", output)
        return _one_loss(tensors, grad_tensors, self._scale)

    def after_backward(self) -> None:
        """Run the rest of it."""
        self.result = self._advance("done")

    def _advance(self, expected: Event, value: Any = None) -> Any:
        """Let the function run with *value* as the answer it waits for, until its next event, and return that.

        Raises:
            DeviationError: it is not the *expected* one.
            Exception: what the function raises.
        """
        self._orders.put(value)
        event, what = self._events.get()
        if event == "raised":
            raise what
        if event != expected:
            raise DeviationError(f"{FOUND[event]} where {FOUND[expected]} came")
        return what

    def cancel(self) -> None:
        """End the function where it stands."""
        self._orders.put(_CANCEL)

    def body(self, setting: Setting) -> Callable[[], None]:
        """Return the body of the function's thread: it runs in *setting* and sees this thread's context variables."""
        return functools.partial(contextvars.copy_context().run, self._run, setting)

    def _run(self, setting: Setting) -> None:
        if self._orders.get() is _CANCEL:
            return
        local = self._model.local
        local.forward, local.backward = self._forward, self._backward
        args, kwargs = self._arguments
        try:
            with setting.applied(), self._recorder.watching():
                self._events.put(("done", self._function(*args, **kwargs)))
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the schedule's thread
            self._events.put(("raised", error))
        finally:
            local.forward = local.backward = None
            self._arguments = ((), {})

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        here = Setting.here()
        if here != self._setting._replace(grad=self._setting.grad if self._has_backward else here.grad):
            raise DeviationError(f"a call of the model in other modes ({here}, not {self._setting})")
        return self._ask("model", (args, kwargs))

    def _backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        self._ask("backward", (tensors, grad_tensors))

    def _ask(self, event: Event, what: Any) -> Any:
        self._events.put((event, what))
        answer = self._orders.get()
        if answer is _CANCEL:
            raise _Cancelled
        return answer


def _one_loss(tensors: Any, grad_tensors: Any, scale: float) -> Any:
    """Return a scalar that has the gradients of *tensors*, weighted by *grad_tensors*, times *scale*."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    weights = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else list(grad_tensors)
    weights += [None] * (len(several) - len(weights))
    losses = [
        tensor if weight is None else (tensor * weight).sum() for tensor, weight in zip(several, weights, strict=True)
    ]
    loss = sum(losses[1:], losses[0])
    return loss if scale == 1.0 else loss * scale
