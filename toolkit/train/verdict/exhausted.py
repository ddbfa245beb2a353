"""Pure: whether a launcher failed because its host ran out of descriptors, processes or memory.

`train` and the launcher share the host's limits, and chance decides which of them reaches one first. Either way the
cause is the limit, and the job ends with 75.
"""

import errno
import os
import re

from toolkit.errors import PlatformError
from toolkit.job.host_limits import NUMBERS, limit_error
from toolkit.job.outcome import Exit, PhaseEnd
from toolkit.patterns import lazy
from toolkit.train.verdict.cause import LAST_CHARACTERS, LAST_LINES, find_traceback, handled_errors
from toolkit.train.verdict.tail import last_lines

_ERRNO = lazy(r"^\w*Error: \[Errno (\d+)\]", re.MULTILINE)
# ENFILE's text begins with EMFILE's; so it comes first.
_BY_TEXT = tuple((os.strerror(number), number) for number in (errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EAGAIN))
# threading's error where clone(2) was refused; it has no errno.
_NO_THREAD = "can't start new thread"


def find_limit(phase: PhaseEnd, launcher: Exit, *, relays_ranks: bool) -> PlatformError | None:
    """Return the limit that ended *launcher*, None if none did.

    *relays_ranks*: its stderr also has its ranks' lines, so that only an exception counts, not its last lines.
    """
    trace = find_traceback(phase, launcher)
    if trace is not None:
        text = "\n".join((trace.error, handled_errors(phase, launcher)))
        number = _read_errno(text, forks="fork" in trace.text)
    elif relays_ranks:
        return None
    else:
        stderr, _ = phase.tails.get(launcher.process, (b"", b""))
        text = last_lines(stderr, LAST_LINES, LAST_CHARACTERS)
        number = _read_errno(text, forks="fork" in text)
    return None if number is None else limit_error(number, phase.open_files)


def _read_errno(output: str, *, forks: bool) -> int | None:
    """Return the errno of the limit that *output* names, None if it names none. *forks*: its EAGAIN is fork's."""
    if _NO_THREAD in output:
        return errno.EAGAIN
    by_number = [int(number) for number in _ERRNO.findall(output)]
    by_text = [number for text, number in _BY_TEXT if text in output]
    for number in (*by_number, *by_text):
        if number in NUMBERS and (number != errno.EAGAIN or forks):
            return number
    return None
