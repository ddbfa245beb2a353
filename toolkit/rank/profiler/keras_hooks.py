"""Attaches the step timer to Keras 3: to the list through which `fit` calls callbacks, also where a script has none.

With `steps_per_execution=N`, Keras tells the end of each N steps; then a step is N steps of the model. Keras fetches
data inside of its training function, so the parts of a step are not known.
"""

import functools

from .arming import arm
from .step_timer import timer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


MARK = "_toolkit_times_it"


def attach(module: "ModuleType") -> None:
    """Attach the step timer of this process to keras.src.callbacks.callback_list."""
    callbacks = module.CallbackList
    if getattr(callbacks, MARK, False):
        return
    setattr(callbacks, MARK, True)
    begins, ends, step_timer = callbacks.on_train_batch_begin, callbacks.on_train_batch_end, timer()

    @functools.wraps(begins)
    def on_train_batch_begin(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        step_timer.batch_begins()
        return begins(self, *arguments, **keywords)

    @functools.wraps(ends)
    def on_train_batch_end(self: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        output = ends(self, *arguments, **keywords)
        step_timer.batch_ends()
        return output

    callbacks.on_train_batch_begin = on_train_batch_begin
    callbacks.on_train_batch_end = on_train_batch_end
    arm()
