"""Measures the steps of this process by hooks, annotations and heartbeats.

A step ends when the optimizer has updated the parameters; it begins where the step before it ended. With several
optimizers, the one that first stepped counts, until another one steps twice without it. Where no optimizer is seen, a
step ends when Keras ends a batch; else when a TensorFlow loop has updated its model; else when the annotation that came
first (smppy.annotate) is entered again; else at a heartbeat (toolkit.status). A later kind counts only until an
earlier kind is seen.

Parts of a step, all in ns and NONE where not measured: waiting for the data loader; evaluation, from the end of the
step before to the end of the last call of a module with gradients off; forward, from the first call of a module with
gradients on (where calls are not seen: from the loader's batch, or the end of the step before) to the start of
backward; backward; the optimizer, with what the script does between backward and its step, and `zero_grad`; saving
checkpoints; Python's garbage collections; and the pause, which is the rest of what lies before the forward pass. They
do not overlap. Only the thread that steps is measured: a loader that fetches, or a checkpoint that is written, in
another thread does not hold up the step.

The CPU time of the thread that steps, in the whole step and in its parts, is read where the step before took
CPU_FROM_NS or longer: what a part took beyond it, the thread waited. How long torch.compile compiled within the step is
measured, too.

Times are the host's. On a GPU, whose work is asynchronous, a part ends when its work is queued; the whole step is right
as soon as the script waits for the GPU in every step, or the queue is full.
"""

import os
import sys
from _thread import get_ident
from time import monotonic_ns, thread_time_ns

from ...status_pages import layout as layout
from .import_clock import ATTRIBUTE
from .ring import StepRing

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

NONE = layout.NONE
# After steps as long as this, CPU times are read: four times 1 to 2 us are at most 0.2 % of it.
CPU_FROM_NS = 5_000_000
# The sources of the end of a step, the best last.
NOBODY, HEARTBEATS, ANNOTATIONS, LOOP, KERAS, OPTIMIZER = range(6)
NO_CPU = (NONE, NONE, NONE, NONE, NONE)
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
        self.on_pause: Callable[[int], None] | None = None
        """Called at the end of each step with the ns of it that nothing explains."""
        self.call_apart: Callable[[Callable[[], None]], None] = _call
        """Calls a function of which a compiler that compiles the step must see nothing: not what that calls, either."""
        self.restart()

    def restart(self) -> None:
        """Begin anew: in a forked child, which has steps and a file of its own."""
        self.ring: StepRing | None = None
        self.steps = 0
        """Those that have ended."""
        self.source = NOBODY
        self.thread = 0
        self.is_sampled = False
        """True: a thread looks at what this process does in its pauses, and counts its samples here."""
        self.pause_samples = self.data_samples = 0
        """Samples taken in pauses, and those of them in generators of the script, which make its data."""
        self._start_ns = 0  # 0: not known.
        self._saves = self._saving_since_ns = self._saving_aside_ns = 0
        self._collection_since_ns = self._compiling_since_ns = 0
        self._saving_since_cpu_ns = 0
        self.reads_cpu = False
        """True: CPU times are read in this step."""
        self._calls_without_gradients = 0
        self._without_gradients = False  # In this step a module was called so before its forward pass began,
        self._last_without_gradients = False  # and in the last step: then it belongs to each step.
        self.aside_ns = 0
        """What has passed in collections, saves and `zero_grad` until now: no part of what they interrupt."""
        self._main = self._inside = 0
        self._others: set[int] = set()
        self._first_annotation = ""
        self._last_beat = NONE
        self._start_cpu_ns = 0
        self._test_since_ns = self._test_since_cpu_ns = 0
        self._begin(0)

    def _begin(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._data_ns = self._forward_ns = self._backward_ns = self._optimizer_ns = self._saving_ns = NONE
        self._own_backward_ns = self._evaluation_ns = self._collection_ns = self._pause_ns = self._compile_ns = NONE
        self._data_cpu_ns = self._evaluation_cpu_ns = self._saving_cpu_ns = 0
        self._before_forward_cpu_ns = NONE
        self._in_forward = False
        # As _mark and _mark_evaluation do; a call less costs less in each step.
        self._mark_ns = self._evaluation_mark_ns = start_ns
        self._mark_aside_ns = self._evaluation_aside_ns = self.aside_ns
        self._before_evaluation_ns = NONE, NONE
        self._samples_before_evaluation = self.pause_samples, self.data_samples
        self._annotated_ns: dict[str, int] = {}

    def _mark(self, now_ns: int) -> None:
        """Note where the next part begins."""
        self._mark_ns = now_ns
        self._mark_aside_ns = self.aside_ns

    def _mark_evaluation(self) -> None:
        """Note where an evaluation may begin: at the last mark."""
        self._evaluation_mark_ns, self._evaluation_aside_ns = self._mark_ns, self._mark_aside_ns
        self._before_evaluation_ns = self._data_ns, self._pause_ns
        self._samples_before_evaluation = self.pause_samples, self.data_samples

    @property
    def pause_since_ns(self) -> int:
        """When the pause before the forward pass began that this process is in, monotonic; 0: it is in none."""
        is_elsewhere = self._in_forward or self._inside or self._backward_ns > 0 or not self.thread
        is_measured = self._saves or self._collection_since_ns or self._calls_without_gradients
        return 0 if is_elsewhere or is_measured else self._mark_ns

    @property
    def since_step_ns(self) -> "tuple[int, int]":
        """The ns spent on saving, and on evaluation, since the last step ended."""
        return max(self._saving_ns, 0), max(self._evaluation_ns, 0)

    def _since_mark_ns(self, now_ns: int) -> int:
        return now_ns - self._mark_ns - (self.aside_ns - self._mark_aside_ns)

    def read_cpu_ns(self) -> int:
        """Return the CPU time of this thread, 0 where it is not read in this step."""
        return thread_time_ns() if self.reads_cpu else 0

    def is_elsewhere(self) -> bool:
        """True in a thread that does not step."""
        return self.thread != 0 and self.thread != get_ident()

    def fetched(self, begin_ns: int, end_ns: int, aside_ns: int, cpu_ns: int = 0) -> None:
        """A batch was waited for. *aside_ns*: as it was at *begin_ns*. *cpu_ns*: the CPU time at that time, if read."""
        self._inside = 0
        if cpu_ns:
            self._data_cpu_ns += thread_time_ns() - cpu_ns
        if not self._start_ns:
            self._begin(begin_ns)
            if self.on_start is not None:
                self.on_start()
        elif not self._in_forward:
            self._add_pause(begin_ns - self._mark_ns - (aside_ns - self._mark_aside_ns))
        self._data_ns = end_ns - begin_ns - (self.aside_ns - aside_ns) + (self._data_ns if self._data_ns > 0 else 0)
        if not self._in_forward:
            self._mark(end_ns)

    def module_called(self, with_gradients: bool) -> bool:
        """The script calls a module of its own. Return whether `module_returned` is to be called at its end."""
        if self._in_forward or self._inside:
            return False
        if self._calls_without_gradients:
            self._calls_without_gradients += 1
            return True
        self._without_gradients = self._without_gradients or not with_gradients
        if with_gradients or self._last_without_gradients or not self._start_ns:
            now_ns = monotonic_ns()
            if not self._start_ns:
                self._begin(now_ns)
                if self.on_start is not None:
                    self.on_start()
            self._add_pause(now_ns - self._mark_ns - (self.aside_ns - self._mark_aside_ns))
            if self.reads_cpu and self._before_forward_cpu_ns == NONE:
                self._before_forward_cpu_ns = thread_time_ns() - self._start_cpu_ns
            self._in_forward = True
            self._mark_ns, self._mark_aside_ns = now_ns, self.aside_ns
            return False
        self._calls_without_gradients = 1
        return True

    def module_returned(self) -> None:
        """A call for which `module_called` returned True has ended."""
        self._calls_without_gradients -= 1
        if self._calls_without_gradients:
            return
        now_ns = monotonic_ns()
        took_ns = now_ns - self._evaluation_mark_ns - (self.aside_ns - self._evaluation_aside_ns)
        self._evaluation_ns = took_ns + (self._evaluation_ns if self._evaluation_ns > 0 else 0)
        # What was fetched and what passed before the evaluation is a part of it.
        if self.reads_cpu:
            self._evaluation_cpu_ns = thread_time_ns() - self._start_cpu_ns - self._saving_cpu_ns
            self._data_cpu_ns = 0
        self._data_ns, self._pause_ns = self._before_evaluation_ns
        self.pause_samples, self.data_samples = self._samples_before_evaluation
        self._mark(now_ns)
        self._mark_evaluation()

    def _add_pause(self, pause_ns: int) -> None:
        if self.data_samples:
            data_ns = pause_ns * self.data_samples // self.pause_samples
            self._data_ns = data_ns + (self._data_ns if self._data_ns > 0 else 0)
            pause_ns -= data_ns
        self._pause_ns = pause_ns + (self._pause_ns if self._pause_ns > 0 else 0)

    def went_backward(self, begin_ns: int, end_ns: int, aside_ns: int, computed_ns: int = NONE) -> None:
        """Gradients were computed. *aside_ns*: as it was at *begin_ns*. *computed_ns*: when this rank had its own
        gradients, and began to wait for those of others."""
        if self._mark_ns and not self._inside:
            forward_ns = begin_ns - self._mark_ns - (aside_ns - self._mark_aside_ns)
            self._forward_ns = forward_ns + (self._forward_ns if self._forward_ns > 0 else 0)
        aside_ns = self.aside_ns - aside_ns
        self._backward_ns = end_ns - begin_ns - aside_ns + (self._backward_ns if self._backward_ns > 0 else 0)
        if computed_ns != NONE:
            own_ns = self._own_backward_ns
            self._own_backward_ns = computed_ns - begin_ns + (own_ns if own_ns > 0 else 0)
        self._in_forward = False
        self._mark(end_ns)
        self._mark_evaluation()

    def _has_failed(self, frame: "FrameType") -> bool:
        """True if the optimizer that began to step has raised: the function of *frame*, which all of them run, runs
        only once in the thread that steps."""
        if self.is_elsewhere():
            return False
        code, outer = frame.f_code, frame.f_back
        while outer is not None and outer.f_code is not code:
            outer = outer.f_back
        return outer is None

    def optimizer_begins(self, optimizer: object, *_: object) -> None:
        """An optimizer begins to step; one may call another one (ZeroRedundancyOptimizer), which does not count."""
        if self._inside == 0 or self._inside == id(optimizer) or self._has_failed(sys._getframe(1)):
            self._inside = id(optimizer)
            self._backward_before_ns = self._backward_ns
            self._optimizer_since_ns, self._optimizer_aside_ns = monotonic_ns(), self.aside_ns
            self._before_optimizer_ns = 0
            if self._backward_ns > 0:  # Since then: clipped, unscaled or averaged gradients.
                if self._mark_ns:
                    self._optimizer_since_ns, self._optimizer_aside_ns = self._mark_ns, self._mark_aside_ns
            elif self._mark_ns and not self._in_forward:
                self._before_optimizer_ns = self._since_mark_ns(self._optimizer_since_ns)

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
        if within_ns and self._before_optimizer_ns:
            self._add_pause(self._before_optimizer_ns)
        took_ns = now_ns - self._optimizer_since_ns - within_ns - (self.aside_ns - self._optimizer_aside_ns)
        self._optimizer_ns = took_ns + (self._optimizer_ns if self._optimizer_ns > 0 else 0)
        if optimizer_id == self._main or self._takes_over(optimizer_id):
            if self._others:
                self._others.clear()
            self._end(now_ns, NONE)
        else:
            self._in_forward = False
            self._mark(now_ns)

    def zeroed(self, begin_ns: int) -> None:
        """Gradients were set to zero since *begin_ns*."""
        if self._inside or not self._start_ns or self.is_elsewhere():
            return
        took_ns = monotonic_ns() - begin_ns
        self._optimizer_ns = took_ns + (self._optimizer_ns if self._optimizer_ns > 0 else 0)
        self.aside_ns += took_ns

    def collected(self, phase: str, _: object) -> None:
        """A garbage collection starts or stops (gc.callbacks)."""
        if self.thread != get_ident():
            return
        if phase == "start":
            self._collection_since_ns = monotonic_ns()
        elif self._collection_since_ns:
            took_ns = monotonic_ns() - self._collection_since_ns
            self._collection_since_ns = 0
            self._collection_ns = took_ns + (self._collection_ns if self._collection_ns > 0 else 0)
            self.aside_ns += took_ns

    def compilation_begins(self, *_: object) -> None:
        """torch.compile begins to compile what this thread runs."""
        self._compiling_since_ns = 0 if self.is_elsewhere() else monotonic_ns()

    def compilation_ends(self, *_: object) -> None:
        """torch.compile has compiled."""
        if self._compiling_since_ns and not self.is_elsewhere():
            took_ns = monotonic_ns() - self._compiling_since_ns
            self._compile_ns = took_ns + (self._compile_ns if self._compile_ns > 0 else 0)
            self._compiling_since_ns = 0

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
        if not self._inside or (self._inside != id(optimizer) and self._has_failed(sys._getframe(1))):
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

    def evaluation_begins(self) -> None:
        """Keras begins to evaluate."""
        self._test_since_ns, self._test_since_cpu_ns = monotonic_ns(), self.read_cpu_ns()

    def evaluation_ends(self) -> None:
        """Keras has evaluated."""
        if self._test_since_ns:
            took_ns = monotonic_ns() - self._test_since_ns
            self._evaluation_ns = took_ns + (self._evaluation_ns if self._evaluation_ns > 0 else 0)
            if self._test_since_cpu_ns:
                self._evaluation_cpu_ns += thread_time_ns() - self._test_since_cpu_ns
            self._test_since_ns = 0

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
            self._saving_since_ns, self._saving_aside_ns = monotonic_ns(), self.aside_ns
            self._saving_since_cpu_ns = self.read_cpu_ns()
        return True

    def saving_ends(self) -> None:
        """A checkpoint is saved, or could not be. In a child that was forked meanwhile, nothing had begun."""
        self._saves -= self._saves > 0
        if self._saves == 0 and self._saving_since_ns:
            took_ns = monotonic_ns() - self._saving_since_ns - (self.aside_ns - self._saving_aside_ns)
            self._saving_ns = took_ns + (self._saving_ns if self._saving_ns > 0 else 0)
            self.aside_ns += took_ns
            self._saving_since_ns = 0
            if self._saving_since_cpu_ns:
                self._saving_cpu_ns += thread_time_ns() - self._saving_since_cpu_ns

    def _end(self, now_ns: int, step: int) -> None:
        self.steps += 1
        if self.ring is None and self.folder:
            self.call_apart(self._open)
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
                self._evaluation_ns,
                self._collection_ns,
                self._pause_ns,
                self._compile_ns,
                *(self._divide_cpu_ns() if self.reads_cpu else NO_CPU),
            )
        pause_ns = self._pause_ns
        self.reads_cpu = now_ns - self._start_ns >= CPU_FROM_NS and self._start_ns > 0
        self._start_cpu_ns = thread_time_ns() if self.reads_cpu else 0
        self._last_without_gradients, self._without_gradients = self._without_gradients, False
        self._begin(now_ns)
        if self.on_pause is not None:
            self.on_pause(pause_ns)
        if self.on_step is not None:
            self.on_step(self.steps)

    def _divide_cpu_ns(self) -> "tuple[int, int, int, int, int]":
        """Return the CPU time of the whole step, and of its data, evaluation, saving and pause."""
        whole_ns = thread_time_ns() - self._start_cpu_ns
        parts_ns = self._data_cpu_ns, self._evaluation_cpu_ns, self._saving_cpu_ns
        if self._before_forward_cpu_ns == NONE:
            return (whole_ns, *parts_ns, NONE)
        pause_ns = max(self._before_forward_cpu_ns - sum(parts_ns), 0)
        if self.data_samples:
            data_ns = pause_ns * self.data_samples // self.pause_samples
            return whole_ns, parts_ns[0] + data_ns, parts_ns[1], parts_ns[2], pause_ns - data_ns
        return (whole_ns, *parts_ns, pause_ns)

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
            self._write_start()
        except (OSError, ValueError, ImportError):
            self.folder = ""  # One attempt only.

    def _write_start(self) -> None:
        """Write what this process did before its first step, which has just ended."""
        clock = getattr(sys, ATTRIBUTE, None)
        if clock is None:
            return
        clock.stop()
        if not clock.is_of_this_process() or not self._start_ns:
            return
        import json

        path = os.path.join(self.folder, layout.START_NAME % os.getpid())
        with open(path + ".new", "w") as file:
            json.dump(clock.describe(self._start_ns), file)
        os.replace(path + ".new", path)


def _call(function: "Callable[[], None]") -> None:
    function()


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
