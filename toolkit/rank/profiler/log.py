"""Writes the profiler's lines to the log."""

import sys


def log_line(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write("[toolkit] profiler: %s\n" % text)
