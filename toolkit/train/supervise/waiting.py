"""Waits for a phase's needs in a process of its own, because a name look-up may block for half a minute.

It waits for all needs at the same time. Every 10 s it writes to a pipe which are still missing.

What looks up names is a new program, not only a fork: glibc's getaddrinfo holds a lock while it reads /etc/resolv.conf,
and a fork in that moment, when a thread of the link looks up the leader's name, leaves the lock taken in the child for
ever (resolv/resolv_conf.c of glibc 2.36).
"""

import contextlib
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from toolkit.errors import PlatformError
from toolkit.exit_codes import TEMPORARY_FAILURE
from toolkit.folders import as_absent, exists
from toolkit.job.plan import Listens, Locked, Need, Resolves
from toolkit.records import encode

TELL_EVERY_S = 10.0
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)


def wait_apart(needs: Sequence[Need], locks: dict[str, int], tell: int, program: tuple[str, ...]) -> int:
    """`wait` in a fork that becomes *program*, the command of this module, if there are names to look up."""
    if not any(isinstance(need, Locked) for need in needs):
        os.set_inheritable(tell, True)
        _become(program, str(tell), encode(tuple(needs)))
    return wait(needs, locks, tell)


def wait_gone_apart(need: Listens, program: tuple[str, ...]) -> int:
    """`wait_gone` in a fork that becomes *program*, the command of this module."""
    _become(program, "", encode((need,)))
    return wait_gone(need)


def _become(program: tuple[str, ...], tell: str, needs: bytes) -> None:
    """Return if *program* cannot be started: then the fork goes on, which is right in nearly all cases."""
    with contextlib.suppress(OSError):
        os.execv(program[0], (*program, tell, needs))


def _run(tell: str, needs_text: str) -> int:
    """Run as a program, with the arguments that the functions above give."""
    needs = msgspec.json.decode(os.fsencode(needs_text), type=tuple[Need, ...])
    if tell:
        return wait(needs, {}, int(tell))
    (served,) = needs
    assert isinstance(served, Listens)
    return wait_gone(served)


def wait(needs: Sequence[Need], locks: dict[str, int], tell: int) -> int:
    """Return 0 once every need is met, 75 if one is not met in time. *locks*: an open descriptor by lock path.

    Writes one line for each missing need, then an empty line, to the descriptor *tell*: every 10 s and at the deadline.
    """
    import threading  # Here and below: only a job that waits pays for these imports.

    missing = dict(enumerate(needs))
    changed = threading.Condition()

    def watch(index: int, need: Need) -> None:
        if _until(need, locks):
            with changed:
                del missing[index]
                changed.notify()

    for index, need in enumerate(needs):
        threading.Thread(target=watch, args=(index, need), daemon=True).start()
    began_s = time.monotonic()
    last_s = began_s + max(need.within_s for need in needs)
    next_tell_s = began_s + TELL_EVERY_S
    with changed:
        while missing:
            now_s = time.monotonic()
            if now_s >= min(next_tell_s, last_s):
                text = "".join(f"{need}\n" for need in missing.values())
                os.write(tell, (text + "\n").encode())
                next_tell_s = now_s + TELL_EVERY_S
            if now_s >= last_s:
                return TEMPORARY_FAILURE
            changed.wait(min(next_tell_s, last_s) - now_s)
    return 0


def wait_gone(need: Listens) -> int:
    """Return 0 once two attempts in a row, one second apart, have found nothing that listens there."""
    misses = 0
    while misses < 2:
        misses = 0 if _listens(need.address, need.port) else misses + 1
        time.sleep(1.0)
    return 0


def _until(need: Need, locks: dict[str, int]) -> bool:
    ends_s = time.monotonic() + need.within_s
    check = _check(need, locks)
    tries = 0
    while not check():
        pause_s = RETRY_S[min(tries, len(RETRY_S) - 1)]
        tries += 1
        if time.monotonic() + pause_s > ends_s:
            return False
        time.sleep(pause_s)
    return True


def _check(need: Need, locks: dict[str, int]) -> Callable[[], bool]:
    if isinstance(need, Resolves):
        return lambda: _resolves(need.host)
    if isinstance(need, Listens):
        return lambda: _listens(need.address, need.port)
    return lambda: take(locks[str(need.path)])


def _resolves(host: str) -> bool:
    import socket

    try:
        # Bytes: for a string, getaddrinfo imports the codec "idna", which fails if two threads import it at once. The
        # codec also raises for names that a name server would just not find, such as a label above 63 characters.
        return bool(socket.getaddrinfo(host.encode(), None))
    except (OSError, UnicodeError):
        return False


def _listens(address: str, port: int) -> bool:
    import socket

    try:
        socket.create_connection((address, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def take(lock: int) -> bool:
    """Take the lock of an open descriptor if it is free. All forks that share the open file then hold it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_locks(needs: Sequence[Need], warn: Callable[[str], None]) -> dict[str, int]:
    """Return an open descriptor for each lock among *needs*, by path; the caller closes them.

    A file that other users own or can write to gets none, since another user could hold its lock forever: *warn* takes
    a message, and `train` does not wait for that lock.

    Raises:
        PlatformError: a lock file cannot be made.
    """
    locks = {}
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: for a FIFO.
    for need in needs:
        if not isinstance(need, Locked):
            continue
        try:
            fd = os.open(need.path, flags, 0o600)
        except OSError as error:
            if not exists(need.path, as_absent, follow_links=False):
                raise PlatformError(
                    f"expected a lock file, cannot create it ({error.strerror})",
                    where=str(need.path),
                    hint="Give the container's user a /tmp (or TMPDIR) with room in it.",
                ) from None
            warn(_not_ours(need.path))
            continue
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            locks[str(need.path)] = fd
        else:
            os.close(fd)
            warn(_not_ours(need.path))
    return locks


def _not_ours(path: Path) -> str:
    return (
        f"{path}: expected a lock file of user {os.geteuid()}, found something else: it is not used, and another"
        " train of this user may install at the same time. Remove it, or set TMPDIR to a folder of this user."
    )


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
