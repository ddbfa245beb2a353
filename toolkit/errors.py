"""The four kinds of failure the toolkit itself can name, each with who is to blame and how `train` ends."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from toolkit import exit_codes


class ToolkitError(Exception):
    """A failure with its place and a way out.

    `message` says what was expected and what was found, `where` the file and key (or host), `hint` what to do.
    `prefix` opens the failure text (users of sagemaker-training parse it); `exit_code` is `train`'s.
    """

    blame = "toolkit"
    exit_code = exit_codes.INTERNAL_FAULT
    prefix = "Framework Error"

    def __init__(self, message: str, *, hint: str = "", where: str = "", prefix: str = "") -> None:
        self.message = message
        self.hint = hint
        self.where = where
        if prefix:
            self.prefix = prefix
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.hint:
            text = f"{text.rstrip('.')}{'' if text.endswith('?') else '.'} {self.hint}"
        return text


@contextmanager
def name_place(where: str) -> Iterator[None]:
    """Within the block, give errors that name no place *where* as theirs."""
    try:
        yield
    except ToolkitError as error:
        error.where = error.where or where
        raise


@contextmanager
def prefix_place(prefix: str) -> Iterator[None]:
    """Within the block, put *prefix* in front of the place that an error names."""
    try:
        yield
    except ToolkitError as error:
        error.where = f"{prefix}: {error.where}" if error.where else prefix
        raise


class UserError(ToolkitError):
    """The user's submission is wrong: the entry point, the source, a requirement (EX_CONFIG of sysexits.h)."""

    blame = "user"
    exit_code = exit_codes.MISCONFIGURED
    prefix = "ClientError"


class ContractError(ToolkitError):
    """A document or setting of the job is missing or wrong: names file, key, expected and found."""

    blame = "job"
    exit_code = exit_codes.MISCONFIGURED
    prefix = "ClientError"


class PlatformError(ToolkitError):
    """The surroundings failed and a retry may help: a host vanished, a name does not resolve, a download broke."""

    blame = "platform"
    exit_code = exit_codes.TEMPORARY_FAILURE
    prefix = "PlatformError"


# Errors that are due to the path that the user named; another try ends the same.
_OF_PATHS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


# Errors that another try may not meet: a network file system that is away, a host without free descriptors or memory.
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def may_pass(error: OSError) -> bool:
    """True if another try may help."""
    return error.errno in _PASSING


def is_of_path(error: OSError) -> bool:
    """True if *error* is due to the path: another try ends the same."""
    return error.errno in _OF_PATHS


def choose_document_error(error: OSError) -> "type[ContractError | PlatformError]":
    """Return the class of the error to raise for an unreadable document: PlatformError (75) if another try may help."""
    return PlatformError if may_pass(error) else ContractError


def explain_path_error(error: OSError, message: str = "it cannot be used") -> ToolkitError | None:
    """Return *error* as a UserError (78) if its path is wrong, a PlatformError (75) if another try may help, None if it
    names no path. *message* says what went wrong."""
    if error.filename is None:
        return None
    kind = UserError if is_of_path(error) else PlatformError
    hint = "Correct the path, or its owner and permissions." if kind is UserError else ""
    return kind(f"{message} ({error.strerror})", where=str(error.filename), hint=hint)


NEAR = 0.7  # The least similarity of a word to the one that may be meant, of 1.
LEAST_START = 4  # A start of so many characters is enough, as --stop for --stop-after.


class InternalError(ToolkitError):
    """The toolkit is at fault."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return "Did you mean X?" for the one of *candidates* that is nearest to *word*, "" if none is near."""
    from difflib import get_close_matches  # 3 ms, and only where something is wrong

    plain = {_bare(candidate): candidate for candidate in candidates}
    meant = _bare(word)
    # With difflib's own 0.6, and with the dashes of options, --epochs is near to --detach and --gpus to --rules.
    near = get_close_matches(meant, plain, n=1, cutoff=NEAR)
    if not near and len(meant) >= LEAST_START:
        near = [start for start in plain if start.startswith(meant)]
    return f"Did you mean {plain[near[0]]}?" if near else ""


def _bare(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")


def assert_never(value: NoReturn) -> NoReturn:
    """Fail: no case handles *value*. mypy finds such a case before (typing.assert_never of Python 3.11 and later)."""
    raise AssertionError(f"no case handles {value!r}")
