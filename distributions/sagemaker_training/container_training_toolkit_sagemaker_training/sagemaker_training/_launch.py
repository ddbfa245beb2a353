"""Starts a script by the toolkit's supervisor, in a process of its own, and turns a failure into an exception.

The process is one of its own because it handles every signal and reaps every child, which a framework package may have
for itself. A SIGTERM to this process reaches the script, as under `train`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import IO

import msgspec

from sagemaker_training import errors
from toolkit.own_module import own_module
from toolkit.records import decode
from toolkit.train.entry_point import ScriptAnswer, ScriptRequest

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
CALLED = {kind.__name__: kind for kind in (
    errors.ExecuteUserScriptError, errors.InstallModuleError, errors.InstallRequirementsError
)}  # fmt: skip


def run(request: ScriptRequest, *, wait: bool) -> "subprocess.Popen[bytes]":
    """Run *request* and return its process. *wait*: return when it has ended.

    Raises:
        ClientError: it failed (only with *wait*).
    """
    with _in_memory("request") as asks, _in_memory("answer") as answers:
        complete_request = msgspec.structs.replace(request, environ=dict(os.environ))
        asks.write(json.dumps(msgspec.to_builtins(complete_request)).encode())
        asks.seek(0)  # Flushes it, too.
        sys.stdout.flush()
        sys.stderr.flush()
        with _signals_forwarded(wait) as living:
            process = subprocess.Popen(
                # -I: neither the code folder nor the rank hook on PYTHONPATH are for this process.
                (*own_module(sys.executable, "toolkit.cli.entry_point"), str(answers.fileno())),
                stdin=asks,
                pass_fds=(answers.fileno(),),
                # Hyperparameters and documents may be too large for execve; the supervisor has them from the request.
                env={name: value for name, value in os.environ.items() if not name.startswith("SM_")},
            )
            living.append(process)
            if wait:
                process.wait()
        if wait:
            # Not the return code: it is 0 where something else in this process reaps all children (SIGCHLD ignored).
            answer = _answer(answers, process.returncode)
            if answer.exit_code:
                raise _error(answer)
    return process


def _in_memory(name: str) -> IO[bytes]:
    """Return a file without a place on a disk, which may be full."""
    return os.fdopen(os.memfd_create(name), "w+b")


@contextlib.contextmanager
def _signals_forwarded(wait: bool) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Within the block, pass signals to the process in the list that this yields. Only the main thread can."""
    living: list[subprocess.Popen[bytes]] = []
    if not wait or threading.current_thread() is not threading.main_thread():
        yield living
        return
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        for process in living:
            process.send_signal(number)
        if not living:
            early.append(number)

    handlers = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield _Living(living, early)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class _Living(list["subprocess.Popen[bytes]"]):
    """Passes on, too, what came before the process was there."""

    def __init__(self, living: "list[subprocess.Popen[bytes]]", early: list[int]) -> None:
        super().__init__()
        self._living = living
        self._early = early

    def append(self, process: "subprocess.Popen[bytes]") -> None:
        self._living.append(process)
        for number in self._early:
            process.send_signal(number)


def _answer(answers: IO[bytes], code: int) -> ScriptAnswer:
    answers.seek(0)
    text = answers.read()
    if text:
        return decode(text, ScriptAnswer, "the answer of toolkit.cli.entry_point")
    cause = f"the script's supervisor ended with {code} and left no answer"
    return ScriptAnswer(exit_code=code or 1, kind="ExecuteUserScriptError", cause=cause)


def _error(answer: ScriptAnswer) -> errors.ClientError:
    """Return the exception for a failed script. Its `return_code` becomes the job's exit code."""
    kind = CALLED.get(answer.kind)
    error: errors.ClientError
    if kind is not None:
        error = kind(answer.command, answer.exit_code, answer.cause, answer.place or None)
    else:
        error = errors.ClientError(answer.cause)
        error.return_code = str(answer.exit_code)  # type: ignore[attr-defined]
    error.report = answer.report
    return error
