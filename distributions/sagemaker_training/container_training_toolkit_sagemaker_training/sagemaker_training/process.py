"""Processes that framework packages start themselves."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sagemaker_training import environment, errors, runner
from toolkit.errors import UserError
from toolkit.train.source import classify

DEFAULT_ERROR_CLASS = errors.ExecuteUserScriptError


def python_executable() -> str:
    """Return the path of this interpreter."""
    return sys.executable


def validate_entry_point(user_entry_point: str) -> str:
    """Return the name of a script if it may be one.

    Raises:
        ClientError: it is empty, absolute, leads outside, or has a character special to a shell.
    """
    try:
        classify.validate_entry_point(user_entry_point)
    except UserError as error:
        raise errors.ClientError(str(error)) from None
    return user_entry_point


def check_error(
    cmd: str | Sequence[str],
    error_classes: Any = None,
    processes_per_host: int = 1,  # noqa: ARG001 - the name that callers use
    cwd: str | None = None,
    capture_error: bool = True,
    **kwargs: Any,
) -> "subprocess.Popen[bytes]":
    """Run *cmd* in the folder *cwd*, the code folder by default, and return its process. Its output goes to this
    process's; *capture_error*: stderr is in the exception, too.

    Raises:
        ExecuteUserScriptError: it ended with an error. *error_classes* may be another class of errors.py.
    """
    kind = error_classes if isinstance(error_classes, type) else DEFAULT_ERROR_CLASS
    words = (cmd,) if isinstance(cmd, str) else tuple(cmd)
    command = " ".join(words)
    try:
        process = subprocess.Popen(
            words, cwd=cwd or environment.code_dir, stderr=subprocess.PIPE if capture_error else None, **kwargs
        )
    except OSError as error:
        raise kind(command, 127, str(error)) from error
    lines: list[bytes] = []
    for line in process.stderr or ():
        sys.stderr.buffer.write(line)
        sys.stderr.flush()
        lines.append(line)
    if code := process.wait():
        raise kind(command, code, b"".join(lines))
    return process


class ProcessRunner(runner.Runner):
    """Starts the script as one process."""

    def __init__(
        self,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        processes_per_host: int = 1,  # noqa: ARG002 - it is one
    ) -> None:
        super().__init__(runner.ProcessRunnerType, user_entry_point, args, env_vars, {})
