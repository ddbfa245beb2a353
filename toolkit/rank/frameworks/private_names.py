"""Looks up private names, and says once which one a release does not have.

It is for Python 3.8, too, and imports almost nothing: a step timer and a compiler load it in the user's process.
"""

import functools
import os
import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

# A rank's number, in the variables of torchrun, Open MPI and MPICH.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class MissingNameError(RuntimeError):
    """A release has not the private name that a feature needs; whoever attaches the feature catches it."""


def find_name(root: "Any", path: str) -> "Any":
    """Return what *path* below *root* is ("_C._autograd._get_sequence_nr" of the module torch), None: it is missing."""
    value = root
    for name in path.split("."):
        value = getattr(value, name, None)
        if value is None:
            return None
    return value


def find_or_report(module: "Any", path: str, consequence: str) -> "Any":
    """Return what *path* below the framework *module* is; if it is missing, return None after a line of the log.

    *consequence*: what is off without it, as "steps are not measured".
    """
    value = find_name(module, path)
    if value is None:
        report_missing(module.__name__, path, consequence)
    return value


def require_name(module: "Any", path: str) -> "Any":
    """Return what *path* below the framework *module* is.

    Raises:
        MissingNameError: it is missing.
    """
    value = find_name(module, path)
    if value is None:
        raise MissingNameError(describe_missing(module.__name__, path))
    return value


@functools.lru_cache(maxsize=None)
def report_missing(framework: str, path: str, consequence: str) -> None:
    """Write one line to the log of the first rank, once in a process: *framework* has no *path*."""
    if next((os.environ[name] for name in RANKS if os.environ.get(name)), "0") == "0":
        sys.stderr.write("[toolkit] %s: %s\n" % (describe_missing(framework, path), consequence))


def describe_missing(framework: str, path: str) -> str:
    """Return "torch 2.14.1 has no _C._get_tracing_state"."""
    version = getattr(sys.modules.get(framework.partition(".")[0]), "__version__", "")
    return "%s %s has no %s" % (framework, version, path) if version else "%s has no %s" % (framework, path)
