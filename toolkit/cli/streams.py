"""The standard streams that `train` was given, or was not."""

import os


def fill_standard_streams() -> None:
    """Open /dev/null for each of descriptors 0 to 2 that is closed (`train >&-`).

    The next descriptor to be opened would take the number, and what is written to stderr would end up in it: in the
    signals' own pipe, as signals.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # The lowest free number, so they are filled in order.
        pass
    os.close(fd)
