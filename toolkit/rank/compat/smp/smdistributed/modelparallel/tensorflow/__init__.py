"""The names that scripts import as smp."""

from smdistributed.modelparallel import __version__ as __version__

from toolkit.rank.modelparallel import tf as _tf
from toolkit.rank.modelparallel.tf import *  # noqa: F403


def __getattr__(name: str) -> object:
    return getattr(_tf, name)
