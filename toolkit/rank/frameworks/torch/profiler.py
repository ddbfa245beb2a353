"""Private names by which torch's profiler, data loaders and autograd engine are watched.

It imports nothing of torch: the profiler of a job may watch another framework.
"""

import sys

from ..private_names import find_or_report, require_name

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def require_session_class() -> "Any":
    """Return the class of the profiler's sessions, which `watch_sessions` can watch.

    Raises:
        MissingNameError: they cannot be watched.
    """
    require_name(sys.modules["torch"], "autograd.profiler.profile._prepare_trace")
    return sys.modules["torch"].autograd.profiler.profile


def watch_sessions(session_class: "Any", prepares: "Callable[[Any], None]") -> "Callable[[], None]":
    """Call *prepares*(session) before any session of *session_class* begins; return the function that ends that."""
    original = session_class._prepare_trace

    def prepare(session: "Any", *arguments: "Any", **keywords: "Any") -> "Any":
        prepares(session)
        return original(session, *arguments, **keywords)

    session_class._prepare_trace = prepare

    def unwatch() -> None:
        session_class._prepare_trace = original

    return unwatch


def is_session_open() -> bool:
    """Return whether a session is open in this process; False, where torch does not tell."""
    consequence = "a profiler of the script's own is not noticed"
    is_enabled = find_or_report(sys.modules["torch"], "autograd._profiler_enabled", consequence)
    return is_enabled is not None and bool(is_enabled())


def clear_callbacks() -> None:
    """Have this process record no functions for a session that its parent has begun."""
    clear = find_or_report(sys.modules["torch"], "_C._autograd._clear_callbacks", "forked processes end more slowly")
    if clear is not None:
        clear()


def add_metadata(name: str, text: str) -> None:
    """Write *text*, JSON, into the trace of the open session as *name*."""
    add = find_or_report(
        sys.modules["torch"], "autograd._add_metadata_json", "traces do not say of which rank they are"
    )
    if add is not None:
        add(name, text)


def find_loader_iterator(loading: "Any") -> "Any":
    """Return the class over which all iterators of data loaders are made, None: it has another name.

    *loading*: the module torch.utils.data.dataloader.
    """
    return find_or_report(loading, "_BaseDataLoaderIter", "the time in data loaders is not measured")


def find_engine_queue() -> "Callable[[Callable[[], None]], None] | None":
    """Return the function that has the autograd engine call another one when a backward pass has computed all
    gradients; None where it has none."""
    consequence = "what ranks wait for each other counts as their own work"
    queue: Callable[[Callable[[], None]], None] | None = find_or_report(
        sys.modules["torch"], "autograd.Variable._execution_engine.queue_callback", consequence
    )
    return queue
