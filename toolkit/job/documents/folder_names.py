"""Checks the names of hosts, groups and channels in a job's documents: they become names of files, folders and
variables, and arguments, so they must not contain paths or options."""

import json
from collections.abc import Callable, Iterable, Mapping

from toolkit.errors import ContractError
from toolkit.patterns import lazy

# A name or address, fe80::1%eth0 included, but no option of mpirun or ssh.
_HOST = lazy(r"(?!-)[\w.:%\[\]\-]+")
MOST_BYTES = 255
# The name of a host's file ("HOST-rank-12.1.log") must fit into 255 bytes, too. Linux itself allows 64 for a host.
MOST_HOST_BYTES = 200


def check_hosts(hosts: Iterable[str], source: str, path: str = "") -> None:
    """Check that each of *hosts* is a valid host name; *source* and *path* ("$.hosts") name the document and key.

    Raises:
        ContractError: a name holds a slash or a space, is "." or "..", begins with "-", is longer than 200 bytes or
            occurs twice.
    """
    names: set[str] = set()
    for host in hosts:
        if not _HOST.fullmatch(host) or host in (".", "..") or len(host.encode()) > MOST_HOST_BYTES:
            raise ContractError(
                f"{path + ': ' if path else ''}expected a host's name or address (letters, digits, . _ - : %; at most"
                f" {MOST_HOST_BYTES} bytes), found {_quoted(host)}",
                where=source,
            )
        if host in names:
            message = f"{path + ': ' if path else ''}expected each host once, found {_quoted(host)} twice"
            raise ContractError(message, where=source)
        names.add(host)


def check_folder(name: str, source: str, path: str, kind: str) -> None:
    """Check that *name* is a valid folder name; *kind* ("a channel") is for the message.

    Raises:
        ContractError: it holds a slash or an unprintable character, is "." or "..", empty or longer than 255 bytes.
    """
    if not is_folder_name(name):
        raise ContractError(
            f"{path}: expected the name of {kind} without slashes, at most {MOST_BYTES} bytes, found {_quoted(name)}",
            where=source,
        )


def is_folder_name(name: str) -> bool:
    """True if *name* is a valid name of one folder, not a path."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and len(name.encode()) <= MOST_BYTES


def check_passable(hyperparameters: Mapping[str, object], find_place: Callable[[str], str]) -> None:
    """Raise ContractError for text that neither an argument nor a variable can hold; *find_place* returns the place of
    a hyperparameter."""
    for name, value in hyperparameters.items():
        text = f"{name}{value}"
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ContractError(
                "expected text that arguments and variables can hold, found a NUL or half a surrogate pair in it",
                where=find_place(name),
            )


def _quoted(name: str) -> str:
    return json.dumps(name if len(name) <= 60 else name[:60] + "...")
