"""One window of torch.profiler: from its start to the file.

One session of Kineto can be open in a process. If the script has one, no window is opened; if the script opens one
while a window is open, the window ends first. torch.autograd's profiler is used below torch.profiler's, whose start
imports the compiler.

It starts, marks steps and ends in the thread that trains: in another one Kineto records nothing.
"""

import os
import sys
import time
from _thread import get_ident

from ..frameworks.torch import profiler as torch_profiler

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class TorchWindow:
    """A window that is open. `first`: the number of its first step, None if the script has no steps."""

    framework = "torch"

    def __init__(self, first: "int | None", *, cuda: bool, give_way: "Callable[[], None]") -> None:
        """Open it. *give_way* is called when the script opens a session of its own.

        Raises:
            RuntimeError: torch refuses.
        """
        self.torch = torch = sys.modules["torch"]
        self.first = first
        self.steps = 0
        self.unfinished = ""  # The event of a step that has not ended, and must not be taken for a step.
        self.thread = get_ident()
        self.cuda = cuda and torch.cuda.is_available()
        self._record: Any = None
        session_class = torch_profiler.require_session_class()
        _prepare_forks()
        self._session = session_class(use_kineto=True, **_device(torch, cuda=self.cuda))
        self.start_s = time.time()
        self._session.__enter__()
        self._give_way = give_way
        self._unwatch = torch_profiler.watch_sessions(session_class, self._session_prepares)
        if first is not None:
            self._mark(first)

    def _session_prepares(self, session: "Any") -> None:
        if session is not self._session:
            self._give_way()

    def forget(self) -> None:
        """Give up, in a forked child, the window of the parent: the child records for it, and nobody ends that."""
        self._unwatch()
        torch_profiler.clear_callbacks()

    def _mark(self, step: int) -> None:
        self._record = self.torch.autograd.profiler.record_function("ProfilerStep#%d" % step)
        self._record.__enter__()

    def annotation(self, name: str) -> "Any":
        """Return a context manager that writes *name* into the trace."""
        return self.torch.autograd.profiler.record_function(spell(name))

    def step_ends(self, *, goes_on: bool) -> None:
        """A step of the script has ended; *goes_on*: the next one is in the window, too."""
        self.steps += 1
        if self._record is not None:
            self._record.__exit__(None, None, None)
            self._record = None
        if goes_on and self.first is not None:
            self._mark(self.first + self.steps)

    def _describe(self, rank: int, size: int) -> None:
        distributed = self.torch.distributed
        backend = "none"
        if distributed.is_available() and distributed.is_initialized():
            backend = distributed.get_backend()
        text = '{"backend": "%s", "rank": %d, "world_size": %d}' % (backend, rank, size)
        torch_profiler.add_metadata("distributedInfo", text)

    def close(self, path: str, rank: int, size: int) -> None:
        """End the window and write it to *path* as JSON, with this process's *rank* of *size*.

        Raises:
            RuntimeError: torch refuses, or cannot write.
        """
        try:
            self._describe(rank, size)
            if self._record is not None:
                self._record.__exit__(None, None, None)
                self.unfinished = "ProfilerStep#%d" % ((self.first or 0) + self.steps)
            self._session.__exit__(None, None, None)
        finally:
            self._unwatch()
        self.end_s = time.time()
        self._session.kineto_results.save(path)
        if not os.path.exists(path):
            raise RuntimeError("Kineto wrote no file")


def spell(name: str) -> str:
    """Return *name* in characters that Kineto writes (torch 2.13).

    It writes a quote and a backslash as they are, so that the file is no JSON, drops control characters, and puts
    "unknown" for a name with any character beyond ASCII: such a one becomes its number, "u65e5".
    """
    plain = name.replace('"', "'").replace("\\", "/")
    plain = "".join(character if character.isprintable() else " " for character in plain)
    return plain.encode("ascii", "backslashreplace").decode("ascii").replace("\\", "")


_ends_at_once: "Callable[[], None] | None" = None


def _prepare_forks() -> None:
    """Prepare for `forked`: the child of a process with threads can import little."""
    global _ends_at_once
    if _ends_at_once is not None:
        return
    _ends_at_once = _nothing
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        register, flush = libc.on_exit, libc.__cxa_atexit
        end = ctypes.cast(libc._exit, ctypes.c_void_p)
        fflush = ctypes.cast(libc.fflush, ctypes.c_void_p)
    except (ImportError, OSError, AttributeError):
        return  # A C library without them, as musl.

    def at_once() -> None:
        # Handlers run last in, first out: C's streams are flushed, then on_exit(3) gives the exit code to _exit(2).
        register(end, None)
        flush(fflush, None, None)

    _ends_at_once = at_once


def _nothing() -> None:
    pass


def forked() -> None:
    """Let a child that was forked after a window of its parent end without Kineto's destructors.

    They join a thread that only the parent has: the child would abort, or never end (torch 2.13).
    """
    if _ends_at_once is not None:
        _ends_at_once()


def open_window(first: "int | None", *, cuda: bool, give_way: "Callable[[], None]") -> TorchWindow:
    """Return an open window.

    Raises:
        RuntimeError: torch refuses.
    """
    return TorchWindow(first, cuda=cuda, give_way=give_way)


def is_taken() -> bool:
    """True if a session is open in this process: the script's own."""
    return torch_profiler.is_session_open()


def _device(torch: "ModuleType", *, cuda: bool) -> "dict[str, Any]":
    """Return the argument for CUDA: another name before torch 2.4."""
    if not cuda:
        return {}
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return {"use_device": "cuda"} if version >= (2, 4) else {"use_cuda": True}
