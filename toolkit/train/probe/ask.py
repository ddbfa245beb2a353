"""Ask a program of this machine a question, with a deadline that holds whatever the program does."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.folders import as_absent, is_file
from toolkit.records import Record

if TYPE_CHECKING:
    import subprocess

# `nvidia-smi` takes 0.1 to 3 s on a healthy host of 8 GPUs without persistence mode; a broken driver hangs for ever.
WITHIN_S = 30.0
# A signal that comes just before poll(2) does not interrupt it.
MOST_WAIT_S = 0.1
# Of each stream. A list of 8 GPUs with 56 MIG instances has 6 kB.
MOST_BYTES = 1 << 20


class ProgramOutput(Record, frozen=True, kw_only=True):
    """The output of a program: `text` on stdout, `stderr`.

    `trouble` is empty if it ended with 0, else says what happened instead.
    """

    text: str = ""
    stderr: str = ""
    trouble: str = ""


def find_program(program: str, path: str) -> str | None:
    """Return the file that *program* is in the folders of *path* (as PATH), None if it is in none."""
    for folder in path.split(os.pathsep):
        file = os.path.join(folder or ".", program)
        if os.access(file, os.X_OK) and is_file(file, as_absent):  # A folder that may not be read has none: no error.
            return file
    return None


def ask(argv: tuple[str, ...], *, within_s: float = WITHIN_S) -> ProgramOutput:
    """Return what *argv* says. After *within_s* it is killed with all it started, and not waited for any longer.

    A process stuck in a driver cannot be killed (state D); a second after SIGKILL it is left to whoever reaps. An
    exception that interrupts the wait, as a stop does, ends the program likewise.
    """
    import subprocess

    children_before = _list_children()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return ProgramOutput(trouble=f"cannot be started ({error.strerror})")
    except BaseException:  # The job is stopped while the program starts: it runs, and Popen has not returned.
        for pid in _list_children() - children_before:
            _end_child(pid)
        raise
    try:
        output, trouble = _read(process, time.monotonic() + within_s, within_s)
        if not trouble:
            process.wait(within_s)
            trouble = f"ended with {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:  # It has closed its streams and goes on.
        trouble = f"gave no answer within {within_s:g} s"
    except BaseException:  # The job is stopped: nobody waits for the answer.
        _end(process)
        _close(process)
        raise
    if process.returncode is None:
        _end(process)
    _close(process)
    text, errors = (bytes(stream).decode("utf-8", "replace") for stream in output)
    return ProgramOutput(text=text, stderr=errors, trouble=trouble)


def _read(
    process: "subprocess.Popen[bytes]", ends_s: float, within_s: float
) -> tuple[tuple[bytearray, bytearray], str]:
    """Return what *process* says on stdout and stderr until it closes both, and why that was not waited for."""
    import select

    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    streams = {process.stdout.fileno(): stdout, process.stderr.fileno(): stderr}
    waits = select.poll()
    for stream in streams:
        waits.register(stream, select.POLLIN)
    while streams:
        left_s = max(ends_s - time.monotonic(), 0)
        ready = waits.poll(min(left_s, MOST_WAIT_S) * 1000)
        if not ready and left_s > MOST_WAIT_S:
            continue
        if not ready:
            # A process that it left behind may hold the streams: what it said before its end is its answer.
            has_ended = process.poll() is not None
            return (stdout, stderr), "" if has_ended else f"gave no answer within {within_s:g} s"
        for stream, _ in ready:
            piece = os.read(stream, 1 << 16)
            if not piece:
                waits.unregister(stream)
                del streams[stream]
                continue
            streams[stream] += piece
            if len(streams[stream]) > MOST_BYTES:
                return (stdout, stderr), f"said more than {MOST_BYTES >> 20} MiB"
    return (stdout, stderr), ""


def _list_children() -> set[int]:
    """Return the processes that this thread has started and not waited for; none if the kernel does not list them."""
    try:
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    except OSError:
        return set()


def _end_child(pid: int) -> None:
    ends_s = time.monotonic() + 1
    os.kill(pid, 9)
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < ends_s:
        time.sleep(0.001)


def _close(process: "subprocess.Popen[bytes]") -> None:
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    import subprocess

    os.killpg(process.pid, 9)
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.returncode = -9  # Not ours to wait for any more, and no warning about it at the interpreter's end.
