"""Attaches the step timer to TensorFlow loops without Keras' `fit`: an update by a Keras optimizer ends a step.

A tf.function runs as a graph: its Python code, and so the optimizer's `apply`, is called only while it is traced. So
calls of the outermost function in which an optimizer was seen are counted; an update outside of any counts by itself.
"""

import functools
import sys
from _thread import get_ident

from .arming import arm
from .step_timer import timer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MARK = "_toolkit_times_it"


def attach(module: "ModuleType") -> None:
    """Attach the step timer of this process to the optimizers of the module keras, unless it runs without
    TensorFlow."""
    optimizer, tensorflow = module.optimizers.Optimizer, sys.modules.get("tensorflow")
    if tensorflow is None or getattr(optimizer, MARK, False):
        return
    setattr(optimizer, MARK, True)
    function, step_timer = type(tensorflow.function(lambda: None)), timer()
    applies, calls = optimizer.apply, function.__call__
    applied = 0
    running: set[int] = set()  # Threads that are in a tf.function.

    @functools.wraps(applies)
    def apply(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        nonlocal applied
        applied += 1
        output = applies(self, *arguments, **keywords)
        if get_ident() not in running and sys.modules["tensorflow"].executing_eagerly():
            step_timer.loop_ends(id(self))
        return output

    @functools.wraps(calls)
    def call(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        nonlocal applied
        thread = get_ident()
        is_outermost = thread not in running
        running.add(thread)
        applied_before = applied
        try:
            output = calls(self, *arguments, **keywords)
        finally:
            if is_outermost:
                running.discard(thread)
        if applied != applied_before:
            self._toolkit_updates = True
        if not getattr(self, "_toolkit_updates", False):
            return output
        if is_outermost:
            step_timer.loop_ends(id(self))
        else:
            applied += 1  # It was traced before: the function around it updates as well.
        return output

    optimizer.apply, function.__call__ = apply, call
    arm()
