"""Repairs the start of `train` and `toolkit`: standard streams that are closed, an encoding that is ASCII."""

import os
import sys


def fill_standard_streams(*, writable: bool) -> None:
    """Open /dev/null for each of descriptors 0 to 2 that is closed (`train >&-`). If not *writable*, writes to it fail,
    so that `train` counts them as lost.

    Else the next opened descriptor gets the number, and receives what is written to stderr. It could be the signals'
    wakeup pipe, whose bytes are taken as signals.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            _open_null(os.O_RDWR if writable else os.O_RDONLY)  # It gets the lowest free number, which is *fd*.


def _open_null(flags: int) -> None:
    try:
        os.open(os.devnull, flags)
    except OSError:  # An image without it: reading ends at once here, too, and writing fails.
        os.close(os.pipe()[1])


def use_utf_8() -> None:
    """Exec this process again in Python's UTF-8 mode if the file system encoding is ASCII (LC_ALL=C, PYTHONUTF8=0).

    Documents are UTF-8, and scripts get their content as arguments, variables and paths. The environment does not
    change, so a script's Python has the encoding that the job asks for.
    """
    if sys.getfilesystemencoding() != "ascii" or sys.flags.utf8_mode or not sys.executable:
        return
    try:
        os.execv(sys.executable, (sys.executable, "-X", "utf8", *sys.orig_argv[1:]))
    except OSError:
        pass  # Go on in ASCII: ASCII text still works.
