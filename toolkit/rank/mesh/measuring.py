"""Whether this process compares step times at the moment. The profiler traces nothing meanwhile: what it would trace is
no step of the job as it will run, and the comparison would measure the tracing."""

_under_way = False


def begin() -> None:
    """Step times are compared from here on."""
    global _under_way
    _under_way = True


def end() -> None:
    """The comparison is over."""
    global _under_way
    _under_way = False


def is_under_way() -> bool:
    """True between `begin` and `end`."""
    return _under_way
