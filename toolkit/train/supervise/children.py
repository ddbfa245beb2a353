"""Starts, signals and reaps processes. The only file that forks.

It calls `fork` and `exec` directly: between them the child becomes a session leader and asks to die with `train`
(PR_SET_PDEATHSIG), which os.posix_spawn cannot do, and subprocess only with a thread-unsafe hook. `train` has one
thread. `reap` looks with waitid(WNOWAIT) and reaps with waitpid(pid): a wait for "any child" could take a status that
other code needs, and a lost status looks like success.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from toolkit import exit_codes
from toolkit.errors import UserError
from toolkit.folders import as_absent, is_dir
from toolkit.job.host_limits import NUMBERS
from toolkit.train.supervise.kernel import PR_SET_PDEATHSIG, own_children, stat_fields, stop_tracing
from toolkit.train.supervise.limits import set_open_files
from toolkit.train.supervise.poll import DENIED
from toolkit.train.supervise.signals import defaults

Prctl = Callable[[int, int], int]


def spawn(
    argv: tuple[str, ...],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: Path | str,
    *,
    stdout: int,
    stderr: int,
    prctl: Prctl,
    before_exec: Callable[[], None] = lambda: None,
    open_files: tuple[int, int] | None = None,
) -> int:
    """Start *argv* in a session of its own, standard input empty, and return its pid.

    *open_files*: its (soft, hard) limit of descriptors; None: the limit of this process.

    Raises:
        UserError: the program is not there or cannot be executed (with the kernel's reason).
        OSError: this host has no descriptor, process or memory left, here or in the child before its exec.
    """
    program = _find(argv[0], environ, cwd)
    parent = os.getpid()
    read_end, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        try:
            _become_child(parent, prctl, stdout, stderr)
            before_exec()
            if open_files is not None:
                set_open_files(open_files)
            os.chdir(cwd)
            os.execve(program, argv, environ)
        except OSError as error:
            os.write(write_end, f"{error.errno} {error.filename or ''}".encode())
        except BaseException as error:  # noqa: BLE001 - the child must not return into the parent's code
            os.write(write_end, f"0 {error!r}".encode())
        finally:
            os._exit(exit_codes.CANNOT_START)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as reason:
        failed = reason.read()
    if failed:
        os.waitpid(pid, 0)
        number_text, _, detail = failed.decode("utf-8", "replace").partition(" ")
        if int(number_text) in NUMBERS:
            raise OSError(int(number_text), os.strerror(int(number_text)))
        raise _start_error(argv, cwd, int(number_text), detail)
    return pid


def fork_call(function: Callable[[], int], *, prctl: Prctl, outlives: bool = False) -> int:
    """Run *function* in a fork of this process and return the fork's pid; the function's result is its exit code.

    The fork dies with this process unless *outlives* is set.

    For work that may block (names, locks). A fork shares memory until one side writes, so it costs about a millisecond.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = exit_codes.INTERNAL_FAULT
    try:
        os.setsid()
        defaults()
        if not outlives:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if outlives or os.getppid() == parent:
            code = function()
    finally:
        os._exit(code)


def reap() -> Iterator[tuple[int, int, int]]:
    """Yield (pid, wait status, ended_ns) for each child that has ended, whoever started it.

    A child that called PTRACE_TRACEME, as protected programs do, has made `train` its tracer: the kernel reports each
    of its signals here, and stops it until it is released.
    """
    while True:
        try:
            ended_pid = _ended()
            if ended_pid is None:
                return
            ended_ns = time.monotonic_ns()
            pid, status = os.waitpid(ended_pid, 0)
        except ChildProcessError:
            return
        if os.WIFSTOPPED(status):
            number = os.WSTOPSIG(status)
            stop_tracing(pid, 0 if number == signal.SIGTRAP else number)  # SIGTRAP: exec of a traced process.
        else:
            yield pid, status, ended_ns


def _ended() -> int | None:
    """Return the pid of a child that has ended or stopped and is not reaped, None if there is none.

    Raises:
        ChildProcessError: there is no child.
    """
    try:
        waited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if waited is None else waited.si_pid
    except OSError as error:
        if error.errno not in DENIED:
            raise
    for pid in own_children():  # A sandbox denies waitid(2).
        fields = stat_fields(pid)
        if fields and fields[0] in (b"Z", b"X", b"t"):
            return pid
    return None


def send(pid: int, number: int) -> bool:
    """Send a signal to one process, waking it if it is stopped; False if it is gone."""
    try:
        os.kill(pid, number)
        if number != signal.SIGKILL:
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # It now runs as another user, and `train` may not signal it.
    return True


def send_all(pids: set[int], number: int) -> None:
    """Send a signal to every process in *pids*."""
    for pid in pids:
        send(pid, number)


def _become_child(parent: int, prctl: Prctl, stdout: int, stderr: int) -> None:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(exit_codes.of_signal(signal.SIGKILL))  # train died before the request above took hold.
    null = _empty_input()
    # Move both above 2 first, so that no dup2 overwrites a descriptor that is still needed.
    out, err = _above_two(stdout), _above_two(stderr)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    defaults()


def _empty_input() -> int:
    """Return a descriptor without content: /dev/null, or in an image without it a pipe without writers."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        read_end, write_end = os.pipe()
        os.close(write_end)
        return read_end


def _above_two(fd: int) -> int:
    copies = [fd]
    while copies[-1] <= 2:
        copies.append(os.dup(copies[-1]))
    return copies[-1]


def _find(program: str, environ: Mapping[str, str] | Mapping[bytes, bytes], cwd: Path | str) -> str:
    if "/" in program:
        return program
    path = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}.get("PATH", os.defpath)
    for folder in path.split(os.pathsep):
        candidate = os.path.join(cwd, folder, program)
        if os.access(candidate, os.X_OK) and not is_dir(candidate, as_absent):
            return candidate
    raise UserError(
        f"expected a program named {program} on PATH, found none in {path}",
        hint="Install it in the image, or set PATH in the job's environment.",
    )


def _not_executable(program: Path) -> str:
    """Return what to do about *program*, for which exec fails with ENOEXEC. The numbers are EM_* of elf.h."""
    machines = {3: "i386", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
    try:
        with program.open("rb") as file:
            head = file.read(20)
    except OSError:
        head = b""
    if not head.startswith(b"\x7fELF"):
        return "It needs a first line such as #!/bin/sh."
    machine = os.uname().machine
    number = int.from_bytes(head[18:20], "big" if head[5:6] == b"\2" else "little")
    if len(head) < 20 or machines.get(number, machine) == machine:
        return "It is a program (ELF), but damaged or cut short."
    return f"It is a program for {machines[number]}, and this machine is {machine}: build it for this one."


def _start_error(argv: tuple[str, ...], cwd: Path | str, number: int, detail: str) -> UserError:
    hints = {
        errno.ENOENT: "If it is there, the interpreter in its first line (#!) is not.",
        errno.EACCES: "Make it executable (chmod +x); a file system mounted noexec forbids it, too.",
        errno.ENOEXEC: _not_executable(Path(cwd, detail)) if number == errno.ENOEXEC else "",
        errno.E2BIG: "Its arguments and environment are too large: pass large hyperparameters in a file or channel "
        "(TOOLKIT_ARGUMENT_STYLE=none leaves them in hyperparameters.json).",
    }
    reason = os.strerror(number) if number else detail
    return UserError(f"cannot start {argv[0]} in {cwd}: {reason}", hint=hints.get(number, ""))
