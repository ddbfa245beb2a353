"""The first process of this container: whether it would pass a stop on to `train`."""

import os
from pathlib import Path

SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox")
# A machine's first program: whoever stops a job there signals `train`. sysvinit ignores SIGTERM.
OF_MACHINES = ("init", "systemd", "openrc-init", "runit")
# The PID namespace of the machine itself (PROC_PID_INIT_INO of linux/proc_ns.h): no container.
OF_THE_MACHINE = "pid:[4026531836]"
SIGTERM_BIT = 1 << 14
WAITS_FOR_SIGNALS = "sigtimedwait"
HOW_SHELL = (
    'Let the shell become train: SourceCode(command="exec train") for ModelTrainer of SageMaker\'s SDK v3, '
    'ENTRYPOINT ["train"] in an image, exec train at the end of a start script'
)
HOW = (
    "Let it become train (os.execvp in Python), give it a handler that sends SIGTERM on to train, or start the "
    "container with an init (docker run --init, tini)"
)


def deaf_init(root: Path) -> str:
    """Return a warning if PID 1 has started `train` and the platform's SIGTERM does nothing to it, "" otherwise.

    Linux drops a signal to PID 1 of a PID namespace that neither handles nor blocks it. A shell passes none on to the
    program that it waits for, and a Python program without a handler does not either. What a handler does, nobody can
    tell: no word of it.
    """
    if os.getpid() == 1:
        return ""
    try:
        program = _program(root, 1)
        status = (root / "proc/1/status").read_text("utf-8", "replace")
        is_shell = _is_shell(program)
        if _mask(status, "SigCgt") & ~_mask(status, "SigIgn") & SIGTERM_BIT:
            return ""
        if not is_shell and (not program or _may_take(root, program, status) or not _is_from_init(root)):
            return ""
    except OSError:
        return ""  # No /proc, or one that hides others' processes.
    kind, how = ("a shell", HOW_SHELL) if is_shell else ("a program", HOW)
    return (
        f"PID 1 of this container is {kind} ({program}) that drops SIGTERM: a stop reaches neither train nor the "
        f"script, which end with SIGKILL. {how}"
    )


def _may_take(root: Path, program: str, status: str) -> bool:
    """True if PID 1, no shell, may take SIGTERM without a handler.

    One that blocks SIGTERM reads it from a signalfd (systemd, catatonit), or waits for it (tini, Python's sigwait):
    while it waits, the mask of blocked signals in /proc is without it, and only the place where it waits shows that
    (kernel/signal.c, do_sigtimedwait). Where the kernel does not say that place, nothing is known.
    """
    if program.rpartition("/")[2] in OF_MACHINES or str((root / "proc/self/ns/pid").readlink()) == OF_THE_MACHINE:
        return True
    waits_in = (root / "proc/1/wchan").read_text("utf-8", "replace")
    is_known = waits_in not in ("", "0")
    return bool(_mask(status, "SigBlk") & SIGTERM_BIT) or not is_known or WAITS_FOR_SIGNALS in waits_in


def _is_from_init(root: Path) -> bool:
    """True if PID 1 has started `train` itself, or through shells: else the platform may signal another process."""
    pid = os.getppid()
    while pid > 1 and _is_shell(_program(root, pid)):
        status = (root / f"proc/{pid}/status").read_text("utf-8", "replace")
        pid = int(_value(status, "PPid") or 0)
    return pid == 1


def _program(root: Path, pid: int) -> str:
    words = (root / f"proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace").split(" ")
    return words[0]  # Some write more into it: "init [2]".


def _is_shell(program: str) -> bool:
    return program.rpartition("/")[2].lstrip("-") in SHELLS


def _mask(status: str, name: str) -> int:
    """Return a mask of signals from /proc/PID/status."""
    return int(_value(status, name) or "0", 16)


def _value(status: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith(f"{name}:")), "")
