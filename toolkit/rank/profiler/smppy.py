"""SageMaker Profiler's interface for scripts, which its library has under the names smppy and smprof.

    import smppy
    profiler = smppy.SMProfiler.instance()
    config = smppy.Config()
    config.profiler = {"EnableCuda": "1"}
    profiler.configure(config)
    profiler.start_profiling()
    with smppy.annotate("Forward"): ...
    profiler.stop_profiling()

Names and keys: SageMaker's developer guide, "Prepare and run a training job with SageMaker Profiler" (seen 2026-11).
Windows of 20 steps are traced between start and stop (plan.py), not all steps. Outside of a job, without torch and
without TensorFlow, every call does nothing. docs/profiler.md has the keys that have an effect.
"""

import functools
import os

from ..mesh import import_hooks as imports
from . import arrival, step_timer
from .trace_place import TracePlace
from .tracing import tracer

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

ON = ("1", "true", "on", "yes")


class Config:
    """The configuration of a profile. `profiler`: the keys, with texts as values; unknown ones have no effect."""

    def __init__(self) -> None:
        self.profiler: Mapping[str, object] = {}


class SMProfiler:
    """The profiler of this process; get it from `instance`."""

    _only: "SMProfiler | None" = None

    def __init__(self) -> None:
        self._config = Config()

    @classmethod
    def instance(cls) -> "SMProfiler":
        """Return the one profiler of this process."""
        if cls._only is None:
            cls._only = cls()
        return cls._only

    def configure(self, config: Config) -> None:
        """Use *config* from the next `start_profiling` on."""
        self._config = config

    def start_profiling(self) -> None:
        """Begin to trace windows of this process."""
        if not TracePlace(os.environ).folder:
            return
        arrival.watch(imports)
        tracer().start_samples(cuda=self._with_cuda())

    def stop_profiling(self) -> None:
        """Write the window that is open, and trace no more."""
        if TracePlace(os.environ).folder:
            tracer().stop_samples()

    def _with_cuda(self) -> bool:
        setting = (self._config.profiler or {}).get("EnableCuda", os.environ.get("SMP_ENABLE_CUDA", ""))
        return str(setting).strip().lower() in ON


class annotate:  # noqa: N801 - its name in scripts
    """Names what runs inside it, in traces and for step times: `with annotate("Forward"):`, or as a decorator."""

    def __init__(self, name: str) -> None:
        self.name = str(name)
        self._open: list[AnnotationHandle] = []

    def __enter__(self) -> "annotate":
        self._open.append(annotation_begin(self.name))
        return self

    def __exit__(self, *_: object) -> None:
        annotation_end(self._open.pop())

    def __call__(self, function: "Callable[..., Any]") -> "Callable[..., Any]":
        @functools.wraps(function)
        def annotated(*arguments: "Any", **keywords: "Any") -> "Any":
            with annotate(self.name):
                return function(*arguments, **keywords)

        return annotated


class AnnotationHandle:
    """An annotation that is open: the handle of `annotation_begin`."""

    __slots__ = ("begin_ns", "name", "record")

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin_ns = 0
        self.record: Any = None


def annotation_begin(name: str) -> AnnotationHandle:
    """Begin an annotation; return the handle for `annotation_end`."""
    handle = AnnotationHandle(str(name))
    if step_timer.exists():
        handle.begin_ns = step_timer.timer().annotation_begins(handle.name)
        handle.record = tracer().annotation(handle.name)
        if handle.record is not None:
            handle.record.__enter__()
    return handle


def annotation_end(handle: AnnotationHandle) -> None:
    """End the annotation *handle*; a second time does nothing."""
    record, handle.record = handle.record, None
    if record is not None:
        record.__exit__(None, None, None)
    if handle.begin_ns:
        step_timer.timer().annotation_ends(handle.name, handle.begin_ns)
        handle.begin_ns = 0
