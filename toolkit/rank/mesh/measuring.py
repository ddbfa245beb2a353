"""Remembers that this process compares step times. The profiler traces nothing meanwhile: it would trace steps that are
not those of the job, and the comparison would measure the tracing."""

_is_comparing = False


def begin() -> None:
    """Note that the comparison of step times begins."""
    global _is_comparing
    _is_comparing = True


def end() -> None:
    """Note that the comparison has ended."""
    global _is_comparing
    _is_comparing = False


def is_under_way() -> bool:
    """True between `begin` and `end`."""
    return _is_comparing
