"""smdistributed.dataparallel.tensorflow's functions under the name that scripts for Keras import, and callbacks."""

from smdistributed.dataparallel.tensorflow import *  # noqa: F403
from smdistributed.dataparallel.tensorflow import __all__ as _all
from smdistributed.dataparallel.tensorflow.keras import callbacks

__all__ = [*_all, "callbacks"]
