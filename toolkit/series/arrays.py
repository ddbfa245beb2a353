"""numpy, imported only where series are read: the monitor writes them without it."""

from importlib.util import find_spec
from types import ModuleType

from toolkit.errors import UserError


def numpy() -> ModuleType:
    """Return the module numpy.

    Raises:
        UserError: it is not installed.
    """
    try:
        import numpy
    except ImportError:
        hint = "Install it: pip install 'container-training-toolkit[report]'"
        raise UserError("reading a job's measurements needs numpy, which is not installed", hint=hint) from None
    return numpy


def has_numpy() -> bool:
    """Return whether `numpy` would return."""
    return find_spec("numpy") is not None
