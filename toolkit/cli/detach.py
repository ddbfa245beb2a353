"""Runs a job in a process of its own, which outlives the command and its terminal (`toolkit run --detach`).

The child leaves the terminal's session, so neither a hangup nor Ctrl-C reaches it. Until the job starts, it writes to
the terminal, and its errors are the command's. Then its console becomes JOBDIR/console.log, and the command ends.
"""

import os
import signal
import sys
from pathlib import Path

from toolkit import exit_codes
from toolkit.exit_codes import of_signal

STARTED = b"1"


class Background:
    """In the child: the other end of the pipe that the command waits on."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def started(self, console: Path) -> None:
        """Make *console* this process's output and let the command end.

        Raises:
            OSError: *console* cannot be made.
        """
        sys.stdout.flush()
        fd = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        os.write(self._pipe, STARTED)
        os.close(self._pipe)


def in_background() -> Background | int | None:
    """Fork. Return a Background in the child; in the command, once the job has started, None, or the exit code of a
    child that could not start it."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        return Background(write_end)
    os.close(write_end)
    try:
        if os.read(read_end, 1) == STARTED:
            return None
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return exit_codes.INTERRUPTED
    finally:
        os.close(read_end)
    _, status = os.waitpid(child, 0)
    return of_signal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
