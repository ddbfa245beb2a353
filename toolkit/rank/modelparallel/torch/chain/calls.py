"""Calls of the user's step function, one for each microbatch, in threads that the schedule stops and resumes."""

import contextvars
import functools
import queue
from collections.abc import Callable
from typing import Any, Literal

import torch

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.recorder import Recorder
from toolkit.rank.modelparallel.torch.messages import AutogradModes

CallEvent = Literal["model", "backward", "done", "raised"]
DESCRIPTIONS: dict[CallEvent, str] = {
    "model": "a call of the model",
    "backward": "a call of model.backward",
    "done": "the end of the step function",
    "raised": "an exception",
}
_CANCEL = object()


class _Cancelled(BaseException):
    pass


class DeviationError(SMPError):
    """A step differs from the first one of its kind."""

    def __init__(self, deviation: str) -> None:
        super().__init__(
            f"expected this step to run as the first step with such arguments did, found {deviation}. Steps of a chain "
            "of modules follow the first one. Set TOOLKIT_SMP_CHAIN=off to run the job without this shortcut"
        )


class StepCall:
    """One call of *function* with *arguments*, those of one microbatch.

    The schedule's thread calls `before_forward`, `after_forward` and `after_backward`; `result` is then the function's
    result. *has_backward*: the function is expected to call model.backward. *modes*: those in which it is expected to
    call the model. The loss's gradient is multiplied by *scale*.
    """

    def __init__(
        self,
        model: Any,
        function: Callable[..., Any],
        arguments: tuple[Any, Any],
        *,
        has_backward: bool,
        modes: AutogradModes,
        scale: float,
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        self._model = model
        self._function = function
        self._arguments = arguments
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[tuple[CallEvent, Any]] = queue.SimpleQueue()
        self._has_backward = has_backward
        self._modes = modes
        self._scale = scale
        self.result: Any = None

    def before_forward(self) -> Any:
        """Run the function until it calls the model; return the model's argument."""
        args, kwargs = self._advance("model")
        if len(args) != 1 or kwargs:
            raise DeviationError(f"a call of the model with {len(args)} and {len(kwargs)} keyword arguments")
        return args[0]

    def after_forward(self, output: Any) -> Any:
        """Run the function with the model's *output* until it calls model.backward, and return the loss.

        None: the function has ended.
        """
        if not self._has_backward:
            self.result = self._advance("done", output)
            return None
        tensors, grad_tensors = self._advance("backward", output)
        return _weighted_loss(tensors, grad_tensors, self._scale)

    def after_backward(self) -> None:
        """Run the rest of the function."""
        self.result = self._advance("done")

    def _advance(self, expected: CallEvent, value: Any = None) -> Any:
        """Run the function, which waits for *value*, until its next event, and return that event's values.

        Raises:
            DeviationError: it is not the *expected* one.
            Exception: what the function raises.
        """
        self._orders.put(value)
        event, values = self._events.get()
        if event == "raised":
            raise values
        if event != expected:
            raise DeviationError(f"{DESCRIPTIONS[event]} where {DESCRIPTIONS[expected]} came")
        return values

    def cancel(self) -> None:
        """End the function at its present event."""
        self._orders.put(_CANCEL)

    def body(self, modes: AutogradModes) -> Callable[[], None]:
        """Return the body of the function's thread: it runs in *modes* and sees this thread's context variables."""
        return functools.partial(contextvars.copy_context().run, self._run, modes)

    def _run(self, modes: AutogradModes) -> None:
        if self._orders.get() is _CANCEL:
            return
        local = self._model.local
        local.forward, local.backward = self._forward, self._backward
        args, kwargs = self._arguments
        try:
            with modes.apply(), self._recorder.watching():
                self._events.put(("done", self._function(*args, **kwargs)))
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the schedule's thread
            self._events.put(("raised", error))
        finally:
            local.forward = local.backward = None
            self._arguments = ((), {})

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        modes = AutogradModes.current()
        if modes != self._modes._replace(grad=self._modes.grad if self._has_backward else modes.grad):
            raise DeviationError(f"a call of the model in other modes ({modes}, not {self._modes})")
        return self._report_event("model", (args, kwargs))

    def _backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        self._report_event("backward", (tensors, grad_tensors))

    def _report_event(self, event: CallEvent, values: Any) -> Any:
        self._events.put((event, values))
        answer = self._orders.get()
        if answer is _CANCEL:
            raise _Cancelled
        return answer


def _weighted_loss(tensors: Any, grad_tensors: Any, scale: float) -> Any:
    """Return a scalar that has the gradients of *tensors*, weighted by *grad_tensors*, times *scale*."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    weights = [grad_tensors] if grad_tensors is None or isinstance(grad_tensors, torch.Tensor) else list(grad_tensors)
    weights += [None] * (len(roots) - len(weights))
    losses = [
        tensor if weight is None else (tensor * weight).sum() for tensor, weight in zip(roots, weights, strict=True)
    ]
    loss = sum(losses[1:], losses[0])
    return loss if scale == 1.0 else loss * scale
