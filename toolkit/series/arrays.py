"""numpy, imported only where series are read: the monitor writes them without it."""

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
