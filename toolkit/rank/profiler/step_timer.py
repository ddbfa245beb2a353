"""Measures the steps of this process by hooks, annotations and heartbeats.

A step ends when the optimizer has updated the parameters; it begins where the step before it ended. With several
optimizers, the one that first stepped counts, until another one steps twice without it. Where no optimizer is seen, a
step ends when Keras ends a batch; else when a TensorFlow loop has updated its model; else when the annotation that came
first (smppy.annotate) is entered again; else at a heartbeat (toolkit.status). A later kind counts only until an
earlier kind is seen.

Parts of a step, all in ns and NONE where not measured: waiting for the data loader; forward, from the loader's
batch (or the end of the step before) to the start of backward; backward; the optimizer; saving checkpoints. They do not
overlap. Only the thread that steps is measured: a loader that fetches, or a checkpoint that is written, in another
thread does not hold up the step. Batches that are fetched with gradients off (evaluation) are no part of the data time.

Times are the host's. On a GPU, whose work is asynchronous, a part ends when its work is queued; the whole step is right
as soon as the script waits for the GPU in every step, or the queue is full.
"""

import os
from _thread import get_ident
from time import monotonic_ns

from ...status_pages import layout as layout
from .ring import StepRing

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable

NONE = layout.NONE
# The sources of the end of a step, the best last.
NOBODY, HEARTBEATS, ANNOTATIONS, LOOP, KERAS, OPTIMIZER = range(6)
# Annotations that name a part of a step, by what their name begins with.
PARTS = (("forward", "forward"), ("backward", "backward"), ("optim", "optimizer"), ("data", "data"), ("input", "data"))


class StepTimer:
    """The times of the step that runs in this process.

    *folder*: the status folder, "" to measure without writing.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.on_step: Callable[[int], None] | None = None
        """Called with the number of each step that has ended."""
        self.on_start: Callable[[], None] | None = None
        """Called when the first step begins."""
        self.restart()

    def restart(self) -> None:
        """Begin anew: in a forked child, which has steps and a file of its own."""
        self.ring: StepRing | None = None
        self.steps = 0
        """Those that have ended."""
        self.source = NOBODY
        self.thread = 0
        self._start_ns = 0  # 0: not known.
        self._saves = self._saving_since_ns = 0
        self._main = self._inside = 0
        self._others: set[int] = set()
        self._first_annotation = ""
        self._last_beat = NONE
        self._begin(0)

    def _begin(self, start_ns: int) -> None:
        self._start_ns = self._mark_ns = start_ns
        self._data_ns = self._forward_ns = self._backward_ns = self._optimizer_ns = self._saving_ns = NONE
        self._own_backward_ns = NONE
        self._annotated_ns: dict[str, int] = {}

    def is_elsewhere(self) -> bool:
        """True in a thread that does not step."""
        return self.thread != 0 and self.thread != get_ident()

    def fetched(self, begin_ns: int, end_ns: int) -> None:
        """A batch was waited for."""
        self._inside = 0
        if not self._start_ns:
            self._start_ns = begin_ns
            if self.on_start is not None:
                self.on_start()
        self._data_ns = end_ns - begin_ns + (self._data_ns if self._data_ns > 0 else 0)
        self._mark_ns = end_ns

    def went_backward(self, begin_ns: int, end_ns: int, computed_ns: int = NONE) -> None:
        """Gradients were computed. *computed_ns*: when this rank had its own, and began to wait for those of others."""
        if self._mark_ns and not self._inside:
            self._forward_ns = begin_ns - self._mark_ns + (self._forward_ns if self._forward_ns > 0 else 0)
        self._backward_ns = end_ns - begin_ns + (self._backward_ns if self._backward_ns > 0 else 0)
        if computed_ns != NONE:
            own_ns = self._own_backward_ns
            self._own_backward_ns = computed_ns - begin_ns + (own_ns if own_ns > 0 else 0)
        self._mark_ns = end_ns

    def optimizer_begins(self, optimizer: object, *_: object) -> None:
        """An optimizer begins to step; one may call another one (ZeroRedundancyOptimizer), which does not count."""
        if self._inside == 0 or self._inside == id(optimizer):
            self._inside = id(optimizer)
            self._backward_before_ns = self._backward_ns
            self._optimizer_since_ns = monotonic_ns()

    def optimizer_ends(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped."""
        optimizer_id = id(optimizer)
        if optimizer_id != self._inside:
            return
        now_ns = monotonic_ns()
        self._inside = 0
        # LBFGS goes backward inside of its step.
        within_ns = 0 if self._backward_ns == self._backward_before_ns else self._backward_ns
        if within_ns and self._backward_before_ns > 0:
            within_ns -= self._backward_before_ns
        took_ns = now_ns - self._optimizer_since_ns - within_ns
        self._optimizer_ns = took_ns + (self._optimizer_ns if self._optimizer_ns > 0 else 0)
        if optimizer_id == self._main or self._takes_over(optimizer_id):
            if self._others:
                self._others.clear()
            self._end(now_ns, NONE)
        else:
            self._mark_ns = now_ns

    def _takes_over(self, optimizer: int, source: int = OPTIMIZER) -> bool:
        """True if *optimizer* counts from now on: the first one, or one that steps twice without that one."""
        if self._main and optimizer not in self._others:
            self._others.add(optimizer)
            return False
        self._main = optimizer
        self.source = source
        return True

    def counted_begins(self, optimizer: object, *_: object) -> None:
        """As `optimizer_begins`, where steps are only counted."""
        if not self._inside:
            self._inside = id(optimizer)

    def counted_ends(self, optimizer: object, *_: object) -> None:
        """As `optimizer_ends`, where steps are only counted: in a third of the time."""
        optimizer_id = id(optimizer)
        if optimizer_id != self._inside:
            return
        self._inside = 0
        if optimizer_id == self._main or self._takes_over(optimizer_id):
            if self._others:
                self._others.clear()
            self.steps = step = self.steps + 1
            if self.on_step is not None:
                self.on_step(step)

    def batch_begins(self) -> None:
        """Keras begins to train a batch, within which it calls what a loop of the script's own would call."""
        self.source = max(self.source, KERAS)
        if not self._start_ns and self.source <= KERAS:
            self._begin(monotonic_ns())
            if self.on_start is not None:
                self.on_start()

    def batch_ends(self) -> None:
        """Keras has trained a batch."""
        if self.source <= KERAS:
            self.source = KERAS
            self._end(monotonic_ns(), NONE)

    def loop_ends(self, updater: int) -> None:
        """A TensorFlow loop has updated a model. *updater*: the id of the optimizer or function that did it."""
        if self.source > LOOP or self.is_elsewhere():
            return
        if updater == self._main or self._takes_over(updater, LOOP):
            self._others.clear()
            self._end(monotonic_ns(), NONE)

    def annotation_begins(self, name: str) -> int:
        """The script enters the annotation *name*; return the time for `annotation_ends`."""
        now_ns = monotonic_ns()
        if self.source > ANNOTATIONS or self.is_elsewhere():
            return now_ns
        if not self._first_annotation:
            self._first_annotation = name
            self.source = ANNOTATIONS
            self._begin(now_ns)
        elif name == self._first_annotation or (_is_step(self._first_annotation) and _is_step(name)):
            self._end(now_ns, NONE)
        return now_ns

    def annotation_ends(self, name: str, begin_ns: int) -> None:
        """The script leaves the annotation *name*."""
        if self.source > ANNOTATIONS or self.is_elsewhere():
            return
        low = name.lower()
        for start, part in PARTS:
            if low.startswith(start):
                self._annotated_ns[part] = self._annotated_ns.get(part, 0) + monotonic_ns() - begin_ns
                return

    def beat(self, step: int) -> None:
        """The script has reached *step*, as its heartbeat says."""
        if self.source > HEARTBEATS or step == self._last_beat or self.is_elsewhere():
            return
        self.source, self._last_beat = HEARTBEATS, step
        if self._start_ns:
            self._end(monotonic_ns(), step)
        else:
            self._begin(monotonic_ns())
            self.thread = get_ident()

    def saving_begins(self) -> bool:
        """The script begins to save a checkpoint. Call `saving_ends` at its end if this returns True."""
        if self.is_elsewhere():
            return False
        self._saves += 1
        if self._saves == 1:
            self._saving_since_ns = monotonic_ns()
        return True

    def saving_ends(self) -> None:
        """A checkpoint is saved, or could not be. In a child that was forked meanwhile, nothing had begun."""
        self._saves -= self._saves > 0
        if self._saves == 0 and self._saving_since_ns:
            took_ns = monotonic_ns() - self._saving_since_ns
            self._saving_ns = took_ns + (self._saving_ns if self._saving_ns > 0 else 0)
            if self._mark_ns:
                self._mark_ns += took_ns  # It is no part of forward.
            self._saving_since_ns = 0

    def _end(self, now_ns: int, step: int) -> None:
        self.steps += 1
        if self.ring is None and self.folder:
            self._open()
        if self.ring is not None:
            if self._annotated_ns:
                self._use_annotations()
            self.ring.add(
                self.steps if step == NONE else step,
                now_ns,
                now_ns - self._start_ns if self._start_ns else NONE,
                self._data_ns,
                self._forward_ns,
                self._backward_ns,
                self._optimizer_ns,
                self._saving_ns,
                self._own_backward_ns,
            )
        self._start_ns = self._mark_ns = now_ns
        self._data_ns = self._forward_ns = self._backward_ns = self._optimizer_ns = self._saving_ns = NONE
        self._own_backward_ns = NONE
        if self.on_step is not None:
            self.on_step(self.steps)

    def _use_annotations(self) -> None:
        """Use the script's annotations for the parts of a step that no hook measured."""
        annotated_ns, self._annotated_ns = self._annotated_ns, {}
        if self._data_ns == NONE:
            self._data_ns = annotated_ns.get("data", NONE)
        if "forward" in annotated_ns or self._backward_ns == NONE:
            self._forward_ns = annotated_ns.get("forward", NONE)
        if self._backward_ns == NONE:
            self._backward_ns = annotated_ns.get("backward", NONE)
        if self._optimizer_ns == NONE:
            self._optimizer_ns = annotated_ns.get("optimizer", NONE)

    def _open(self) -> None:
        self.thread = get_ident()
        try:
            self.ring = StepRing(self.folder)
        except (OSError, ValueError, ImportError):
            self.folder = ""  # One attempt only.


def _is_step(name: str) -> bool:
    return name.lower().startswith("step")


_timer: "StepTimer | None" = None


def exists() -> bool:
    """True if this process has a step timer: if steps are measured, counted or traced."""
    return _timer is not None


def timer() -> StepTimer:
    """Return the step timer of this process, made at the first call."""
    global _timer
    if _timer is None:
        on = os.environ.get("TOOLKIT_STEP_TIMES") == "on"
        _timer = StepTimer(os.environ.get(layout.VARIABLE, "") if on else "")
        os.register_at_fork(after_in_child=_timer.restart)
    return _timer
