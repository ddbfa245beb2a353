"""Pure: whether a launcher failed because its host ran out of descriptors, processes or memory.

`train` and the launcher share the host's limits, and chance decides which of them reaches one first. Either way the
cause is the limit, and the job ends with 75.
"""

import errno
import os
import re

from toolkit.errors import PlatformError
from toolkit.job.host_limits import NUMBERS, limit_error
from toolkit.job.outcome import Ended, Exit
from toolkit.patterns import lazy
from toolkit.train.verdict.cause import LAST_CHARACTERS, LAST_LINES, handled, last_traceback
from toolkit.train.verdict.tail import last

_ERRNO = lazy(r"^\w*Error: \[Errno (\d+)\]", re.MULTILINE)
# ENFILE's text begins with EMFILE's; so it comes first.
_BY_TEXT = tuple((os.strerror(number), number) for number in (errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EAGAIN))
# threading's error where clone(2) was refused; it has no errno.
_NO_THREAD = "can't start new thread"


def limit_reached(ended: Ended, launcher: Exit, *, relays_ranks: bool) -> PlatformError | None:
    """Return the limit that ended *launcher*, None if none did.

    *relays_ranks*: its stderr also has its ranks' lines, so that only an exception counts, not its last lines.
    """
    found = last_traceback(ended, launcher)
    if found is not None:
        said = "\n".join((found.error, handled(ended, launcher)))
        number = _number(said, forks="fork" in found.text)
    elif relays_ranks:
        return None
    else:
        stderr, _ = ended.tails.get(launcher.process, (b"", b""))
        said = last(stderr, LAST_LINES, LAST_CHARACTERS)
        number = _number(said, forks="fork" in said)
    return None if number is None else limit_error(number, ended.open_files)


def _number(said: str, *, forks: bool) -> int | None:
    """Return the errno of the limit that *said* names, None if it names none. *forks*: its EAGAIN is fork's."""
    if _NO_THREAD in said:
        return errno.EAGAIN
    by_number = [int(each) for each in _ERRNO.findall(said)]
    by_text = [number for text, number in _BY_TEXT if text in said]
    for number in (*by_number, *by_text):
        if number in NUMBERS and (number != errno.EAGAIN or forks):
            return number
    return None
