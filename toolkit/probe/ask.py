"""Ask a program of this machine a question, with a deadline that holds whatever the program does."""

import os
from typing import TYPE_CHECKING

from toolkit.records import Record

if TYPE_CHECKING:
    import subprocess

# `nvidia-smi` takes 0.1 to 3 s on a healthy host of 8 GPUs without persistence mode; a broken driver hangs for ever.
WITHIN_S = 30.0


class Answer(Record, frozen=True, kw_only=True):
    """What a program said on stdout. `trouble` is empty if it ended with 0, else says what happened instead."""

    text: str = ""
    trouble: str = ""


def found(program: str, path: str) -> str | None:
    """Return the file that *program* is in the folders of *path* (as PATH), None if it is in none."""
    for folder in path.split(os.pathsep):
        file = os.path.join(folder or ".", program)
        if os.access(file, os.X_OK) and os.path.isfile(file):  # A folder that may not be read has none: no error.
            return file
    return None


def ask(argv: tuple[str, ...], *, within_s: float = WITHIN_S) -> Answer:
    """Return what *argv* says. After *within_s* it is killed with all it started, and not waited for any longer.

    A process stuck in a driver cannot be killed (state D); a second after SIGKILL it is left to whoever reaps. An
    exception that interrupts the wait, as a stop does, ends the program likewise.
    """
    import subprocess

    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(trouble=f"cannot be started ({error.strerror})")
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(trouble=f"gave no answer within {within_s:g} s")
    except BaseException:  # The job is stopped: nobody waits for the answer.
        _end(process)
        raise
    text = output.decode("utf-8", "replace")
    return Answer(text=text, trouble=f"ended with {process.returncode}" if process.returncode else "")


def _end(process: "subprocess.Popen[bytes]") -> None:
    import subprocess

    os.killpg(process.pid, 9)
    try:
        process.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # Not ours to wait for any more, and no warning about it at the interpreter's end.
    if process.stdout:
        process.stdout.close()
