"""The first process of this container: whether it would pass a stop on to `train`."""

import os
from pathlib import Path

SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox")
SIGTERM_BIT = 1 << 14
HOW = (
    'Let the shell become train: SourceCode(command="exec train") for ModelTrainer of SageMaker\'s SDK v3, '
    'ENTRYPOINT ["train"] in an image, exec train at the end of a start script'
)


def deaf_shell(root: Path) -> str:
    """Return a warning if PID 1 is a shell to which the platform's SIGTERM does nothing, "" otherwise.

    Linux drops a signal to PID 1 of a PID namespace that has no handler for it, and a shell passes none on to the
    program that it waits for. A shell with a trap for SIGTERM has a handler: what its trap does, nobody can tell.
    """
    if os.getpid() == 1:
        return ""
    try:
        program = (root / "proc/1/cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace")
        status = (root / "proc/1/status").read_text("ascii", "replace")
    except OSError:
        return ""  # No /proc, or one that hides others' processes.
    shell = program.rpartition("/")[2].lstrip("-")
    if shell not in SHELLS or _mask(status, "SigCgt") & ~_mask(status, "SigIgn") & SIGTERM_BIT:
        return ""
    return (
        f"PID 1 of this container is a shell ({program}) that drops SIGTERM: a stop reaches neither train nor the "
        f"script, which end with SIGKILL. {HOW}"
    )


def _mask(status: str, name: str) -> int:
    """Return a mask of signals from /proc/PID/status."""
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value, 16)
    return 0
