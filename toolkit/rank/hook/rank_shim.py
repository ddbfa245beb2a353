"""The rank shim: runs in place of a launcher's rank, while `train` runs the rank itself.

The launcher starts it in place of the rank (torchrun: PYTHON_EXEC). It sends its command line, environment, folder and
processor affinity to `train`, forwards the signals that it gets, and ends exactly as the rank ended (code or signal).
So `train` has the rank as its own child: it gets the true exit status and its time, has one pipe for each stream, and
nothing else signals or kills the rank. If `train` cannot be reached, the shim becomes the rank.

Runs with -I -S in train's own interpreter, as `rank_shim.py SOCKET INTERPRETER ARGUMENTS...`; "-" is the socket that
TOOLKIT_SHIM_SOCKET names, for launchers that give one command line to all hosts (mpirun). Message: a decimal length and
a newline, then NUL-separated: folder, affinity, number of arguments, the arguments, NAME=VALUE... The descriptor that
PMI_FD names, if any, is sent along: MPICH's ranks talk to their daemon through it. Answers, a line each: `exit N`,
`signal N`. The shim sends `signal N` for each signal that it gets.
"""

# The C modules behind `signal` and `socket`. Without the enums that these add, the shim takes 11 ms of CPU, not 19, and
# each rank has one.
import _signal as signal  # type: ignore[import-not-found]  # typeshed does not list it.
import _socket as socket
import os
import sys


def main(path: str, argv: list[str]) -> None:
    """Run *argv* through the train that listens at *path*; does not return."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    environ = [name + b"=" + value for name, value in os.environb.items()]
    try:
        affinity = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))).encode()
    except OSError:
        affinity = b""  # A sandbox denies the question, so it has set none.
    arguments = [os.fsencode(argument) for argument in argv]
    fields = [os.getcwdb(), affinity, str(len(arguments)).encode(), *arguments, *environ]
    body = b"\0".join(fields)
    try:
        link.connect(_short_path(os.environ.get("TOOLKIT_SHIM_SOCKET", "") if path == "-" else path))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda n, _frame: link.sendall(b"signal %d\n" % n))
        message = b"%d\n%s" % (len(body), body)
        sent = link.sendmsg([message], _pmi_descriptor())
        link.sendall(message[sent:])
    except OSError:
        os.execvp(argv[0], argv)
    answer = b""
    while not answer.endswith(b"\n"):
        try:
            piece = link.recv(256)
        except OSError:
            piece = b""
        if not piece:
            os._exit(70)  # `train` is gone, and the kernel has ended the rank with it.
        answer += piece
    word, value = answer.split()
    if word == b"signal":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if int(value) != signal.SIGKILL:
            signal.signal(int(value), signal.SIG_DFL)
        os.kill(os.getpid(), int(value))
    os._exit(int(value))


def _short_path(path: str) -> str:
    """Return a path for the socket at *path* that is short enough for one (107 bytes)."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    return "/proc/self/fd/%d/%s" % (folder, os.path.basename(path))


def _pmi_descriptor() -> list[tuple[int, int, bytes]]:
    number = os.environ.get("PMI_FD", "")
    if not number.isdigit():
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, int(number).to_bytes(4, sys.byteorder))]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
