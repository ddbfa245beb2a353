"""Marks on the modules that a `with` block creates."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from torch import nn


@contextlib.contextmanager
def created_modules(name: str, value: Any) -> Iterator[None]:
    """Set the attribute *name* to *value* on every module that this thread creates within the block."""
    thread_id = threading.get_ident()
    created = nn.Module.__init__

    @functools.wraps(created)
    def init(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        created(module, *args, **kwargs)
        if threading.get_ident() == thread_id:
            module.__dict__[name] = value

    nn.Module.__init__ = init  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.__init__ = created  # type: ignore[method-assign]
