"""For scripts: a rank reports its steps and progress to `train`, and learns when the job must stop.

    from toolkit import status

Outside the toolkit (TOOLKIT_STATUS_FOLDER is not set) every call returns at once, with False, None or nothing. Inside
it, no call fails or waits, even if the files are gone; at worst nothing is written. docs/status.md has an example and
the costs.

A heartbeat is a copy of 72 bytes into a mapped page, without a system call; `train` reads it at any time
(status_pages/layout.py). One call into C copies all fields, so the GIL makes it atomic for threads and signal handlers.

Warnings:
- The script pays for the import of this module: it imports only os, struct and time (at most 3 ms,
  tests/test_status.py).
- A forked child inherits the mapping. os.fork runs `_forget` in the child, which then gets a page of its own. Reading
  the pid at each call instead would be a system call.
- The page is written before it is mapped: a store into a page for which the disk has no room is a SIGBUS.
"""

import os
import time
from _thread import get_ident  # threading's, without its import.

from toolkit.status_pages import layout as layout

TYPE_CHECKING = False  # As typing's, without importing it: 10 ms.
if TYPE_CHECKING:
    from mmap import mmap
    from types import FrameType
    from typing import Protocol

    class Listener(Protocol):
        """The methods of the step timer that heartbeats and contexts for checkpoints call."""

        def beat(self, step: int) -> None: ...

        def saving_begins(self) -> bool: ...

        def saving_ends(self) -> None: ...


_BODY = layout.RANK_BODY.pack
_BODY_BYTES = layout.RANK_BODY.size
# The two bodies, by whether the number of a write is odd.
_BODIES = tuple(slice(at, at + _BODY_BYTES) for at in (layout.RANK_HEAD.size, layout.RANK_HEAD.size + _BODY_BYTES))
_STOP_AT = layout.STOP_HEAD.size
_STOP_END = _STOP_AT + layout.STOP_BODY.size
_COUNTER = layout.STOP_HEAD.unpack_from
_LAST_NS = 30_000_000_000


def stop_requested() -> bool:
    """True once the job has been asked to stop."""
    return _read_stop() is not None


def time_left_s() -> float | None:
    """Return the seconds until SIGKILL, 0.0 or more; None if no stop is requested."""
    stop = _read_stop()
    return None if stop is None else max(0.0, (stop[1] - time.monotonic_ns()) / 1e9)


def should_stop(step: int) -> bool:
    """True from the step at which all ranks of all hosts stop together; call it once in every step.

    *step* must mean the same on all ranks. The call is also a heartbeat. From heartbeats `train` chooses, shortly after
    the stop request, a step that no rank has passed. A rank that is too slow to reach that step gets True in the last
    third of the grace, at most 30 s before SIGKILL, whatever its step, so that it can still save.
    """
    reached = _page_step(step)
    page = _page()
    if page is not None and reached not in (page.step, layout.NONE):
        page.beat(reached)
        if _listener is not None:
            _listener.beat(reached)
    stop = _read_stop()
    if stop is None:
        return False
    requested_ns, deadline_ns, _, stop_step = stop
    if stop_step != layout.NONE and (stop_step <= reached or reached == layout.NONE):
        return True
    return time.monotonic_ns() >= deadline_ns - min(_LAST_NS, (deadline_ns - requested_ns) // 3)


def heartbeat(step: int) -> None:
    """Report that this process has reached *step*. `train` uses it for the common step, stragglers and restarts."""
    page = _page()
    if page is not None and (reached := _page_step(step)) != layout.NONE:
        page.beat(reached)
        if _listener is not None:
            _listener.beat(reached)


def progress(fraction: float) -> None:
    """Report that *fraction*, 0 to 1, of the work is done."""
    page = _page()
    if page is not None:
        page.advance(fraction)


def _page_step(step: int) -> int:
    """Return *step*, which may be a numpy number or a tensor, as an int that fits the page; NONE if that fails."""
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        return layout.NONE
    return number if 0 <= number < 1 << 63 else layout.NONE


def holding_checkpoint() -> "CheckpointHold":
    """Return a context manager. While any rank is inside it, `train` delays ending the ranks, up to the deadline.

    Contexts may be nested, and several threads may each have one.
    """
    return CheckpointHold()


class CheckpointHold:
    """The context in which a checkpoint is written."""

    __slots__ = ("_page", "_timed")

    def __init__(self) -> None:
        self._page: _Page | None = None
        self._timed = False

    def __enter__(self) -> None:
        self._page = _page()
        if self._page is not None:
            self._page.hold(id(self))
        self._timed = _listener is not None and _listener.saving_begins()

    def __exit__(self, *_: object) -> None:
        if self._timed and _listener is not None:
            _listener.saving_ends()
        # Not the parent's page: a child forked inside the context also leaves the context.
        if self._page is not None and _pages is not None and self._page is _pages.page:
            self._page.release(id(self))


class _Page:
    """This process's file rank-<pid>, mapped into memory."""

    def __init__(self, view: "mmap") -> None:
        self.view = view
        self.writes = 0
        self.step = layout.NONE
        self.step_time_ns = 0
        self.step_ns = 0
        self.heartbeats = 0
        self.fraction = float("nan")
        # The start of every open context, the oldest first. Only operations that need no lock: a signal handler that
        # saves a checkpoint could not take one.
        self.holds: dict[int, int] = {}

    def beat(self, step: int) -> None:
        now_ns = time.monotonic_ns()
        steps = step - self.step
        if steps > 0 and self.heartbeats:
            self.step_ns = max(0, now_ns - self.step_time_ns) // steps
        self.step = step
        self.step_time_ns = now_ns
        self.heartbeats += 1
        self.write()

    def advance(self, fraction: float) -> None:
        try:
            self.fraction = float(fraction)
        except (TypeError, ValueError, OverflowError):
            return
        self.write()

    def hold(self, key: int) -> None:
        self.holds[key] = time.monotonic_ns()
        self.write()

    def release(self, key: int) -> None:
        self.holds.pop(key, None)
        self.write()

    def write(self) -> None:
        self.writes = writes = self.writes + 1
        holds = tuple(self.holds.values())
        # Packed first, then copied: pack_into fills the page with zeros before it packs, and `train` could read those.
        self.view[_BODIES[writes & 1]] = _BODY(
            writes,
            self.step,
            self.step_time_ns,
            self.step_ns,
            self.heartbeats,
            self.fraction,
            len(holds),
            holds[0] if holds else 0,
            writes,
        )


class _Pages:
    """The pages that this process has mapped. Each file is opened when first needed, and only one attempt is made."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.page: _Page | None = None
        self.stop: mmap | None = None
        self.wants_page = self.wants_stop = bool(folder)
        self.has_sigterm = False
        self.forking: set[int] = set()  # threads of which _before_fork holds back SIGTERM

    def make_page(self) -> None:
        self.wants_page = False
        pid = os.getpid()
        start = layout.RANK_HEAD.pack(layout.VERSION, pid)
        start += layout.RANK_BODY.pack(0, layout.NONE, 0, 0, 0, float("nan"), 0, 0, 0) * 2
        try:
            import mmap

            # A page left by another process with this pid, or by this one before an exec, is overwritten and never
            # truncated: if it is mapped (two threads came here at once), a missing byte would be a SIGBUS.
            fd = os.open(os.path.join(self.folder, layout.RANK_NAME % pid), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.pwrite(fd, start.ljust(layout.PAGE_BYTES, b"\0"), 0) == layout.PAGE_BYTES:
                    self.page = _Page(mmap.mmap(fd, layout.PAGE_BYTES))
            finally:
                os.close(fd)
        except (OSError, ValueError, ImportError):
            return

    def open_stop(self) -> None:
        self.wants_stop = False
        try:
            import mmap

            fd = os.open(os.path.join(self.folder, layout.STOP_NAME), os.O_RDONLY)
            try:
                view = mmap.mmap(fd, layout.PAGE_BYTES, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError, ImportError):
            return
        if _COUNTER(view)[0] == layout.VERSION:
            self.stop = view
            self.has_sigterm = _outlive_sigterm()


# The only state of this module: the pages of this process.
_pages: _Pages | None = None
_watches_forks = False
# The step timer, where the steps of this process are measured (toolkit/rank/profiler/status_hooks.py sets it).
_listener: "Listener | None" = None


def _find() -> _Pages:
    global _pages, _watches_forks
    _pages = _Pages(os.environ.get(layout.VARIABLE, ""))
    if _pages.folder and not _watches_forks:
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget)
        _watches_forks = True
    return _pages


def _page() -> _Page | None:
    pages = _pages or _find()
    if pages.wants_page:
        pages.make_page()
    return pages.page


def _read_stop() -> "tuple[int, int, int, int] | None":
    """Return requested_at_ns, deadline_ns, signal and stop_step, None if no stop was requested."""
    pages = _pages or _find()
    if pages.wants_stop:
        pages.open_stop()
    stop = pages.stop
    if stop is None or not _COUNTER(stop, _STOP_AT)[0]:
        return None
    fields = layout.read_consistent(lambda: stop[_STOP_AT:_STOP_END], layout.STOP_BODY)
    return fields if fields is not None and fields[0] else None


def _outlive_sigterm() -> bool:
    """Install a handler so that SIGTERM does not end this process before it sees the stop request; True if installed.

    Only if the script left SIGTERM at its default: a handler that the script sets, before or later, stays.
    """
    import signal

    try:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _on_sigterm)
    except ValueError:  # Not in the main thread: only that can set a handler.
        return False
    return True


def _on_sigterm(number: int, _frame: "FrameType | None") -> None:
    """End this process as SIGTERM does by default, unless the signal belongs to a stop that the script checks for."""
    if not stop_requested():
        import signal

        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


# A forked child must die of SIGTERM (Process.terminate), unless the script has a handler. Python drops a signal that
# comes between the fork and its own first line in the child, and a parent that waits for the child would wait forever
# (seen in 3 of 8 runs under load). So SIGTERM is blocked until its default is restored.


def _before_fork() -> None:
    if _pages is not None and _pages.has_sigterm:
        import signal

        if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,)):
            _pages.forking.add(get_ident())


def _after_fork() -> None:
    if _pages is not None and get_ident() in _pages.forking:
        import signal

        _pages.forking.discard(get_ident())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def _forget() -> None:
    """Drop, in a forked child, the parent's pages."""
    global _pages
    parents, _pages = _pages, None
    if parents is not None and parents.has_sigterm:
        import signal

        if signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if get_ident() in parents.forking:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
