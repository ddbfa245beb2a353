"""What `train` and `toolkit` are started with: standard streams that may be closed, an encoding that may be ASCII."""

import os
import sys


def fill_standard_streams(*, writable: bool) -> None:
    """Open /dev/null for each of descriptors 0 to 2 that is closed (`train >&-`). Not *writable*: what is written there
    is refused, so that it counts as lost.

    The next descriptor to be opened would take the number, and what is written to stderr would end up in it: in the
    signals' own pipe, as signals.
    """
    while (
        fd := os.open(os.devnull, os.O_RDWR if writable else os.O_RDONLY)
    ) <= 2:  # The lowest free number, so they are filled in order.
        pass
    os.close(fd)


def use_utf_8() -> None:
    """Start this process anew with Python's UTF-8 mode where its arguments, variables and paths would have to be ASCII
    (LC_ALL=C with PYTHONUTF8=0): documents are UTF-8, and what they hold is given to scripts as these.

    The environment stays as it is: a script's Python has the encoding that the job asks for.
    """
    if sys.getfilesystemencoding() != "ascii" or sys.flags.utf8_mode or not sys.executable:
        return
    try:
        os.execv(sys.executable, (sys.executable, "-X", "utf8", *sys.orig_argv[1:]))
    except OSError:
        pass  # As it is: what ASCII can hold, works.
