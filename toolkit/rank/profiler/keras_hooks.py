"""Attaches the step timer to Keras 3: to the list through which `fit` calls callbacks, also where a script has none.

With `steps_per_execution=N`, Keras tells the end of each N steps; then a step is N steps of the model. Keras fetches
data inside of its training function, so of the parts of a step only evaluation is known.
"""

import functools

from . import loop_hooks
from .arming import arm
from .step_timer import timer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


MARK = "_toolkit_times_it"


def attach(module: "ModuleType") -> None:
    """Attach the step timer of this process to the module keras; to Keras 2 not."""
    callbacks = module.callbacks.CallbackList
    if getattr(callbacks, MARK, False) or module.__version__.startswith("2."):
        return
    setattr(callbacks, MARK, True)
    begins, ends, step_timer = callbacks.on_train_batch_begin, callbacks.on_train_batch_end, timer()
    test_begins, test_ends = callbacks.on_test_begin, callbacks.on_test_end

    @functools.wraps(begins)
    def on_train_batch_begin(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        step_timer.batch_begins()
        return begins(self, *arguments, **keywords)

    @functools.wraps(ends)
    def on_train_batch_end(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        output = ends(self, *arguments, **keywords)
        step_timer.batch_ends()
        return output

    @functools.wraps(test_begins)
    def on_test_begin(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        step_timer.evaluation_begins()
        return test_begins(self, *arguments, **keywords)

    @functools.wraps(test_ends)
    def on_test_end(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        output = test_ends(self, *arguments, **keywords)
        step_timer.evaluation_ends()
        return output

    callbacks.on_train_batch_begin = on_train_batch_begin
    callbacks.on_train_batch_end = on_train_batch_end
    callbacks.on_test_begin = on_test_begin
    callbacks.on_test_end = on_test_end
    arm()
    loop_hooks.attach(module)
