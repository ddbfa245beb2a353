"""Files in output/data that the training does not need: a full or read-only disk must not end it."""

import sys
from collections.abc import Callable


def try_to(write: Callable[[], None], description: str) -> None:
    """Call *write*, which writes *description*; an OSError becomes a warning on stderr."""
    try:
        write()
    except OSError as error:
        sys.stderr.write(f"[toolkit] smp: warning: {description} cannot be written ({error}); the training goes on\n")
