"""Starts this host's ranks for a distribution that has no launcher of its own (jax), and ends when all have ended.

`rank_starter.py COMMAND...` runs COMMAND once for each entry of TOOLKIT_LOCAL_RANKS: a JSON list with the variables of
each rank beside those that this process has. If PYTHON_EXEC is set, it is put before the command: the rank shim, by
which `train` runs the rank itself (rank_shim.py). Signals are passed on to all ranks. Without the shim, the first rank
that fails also ends the others, because they may wait for it forever, and this process ends as that rank did.

A port 0 in JAX_COORDINATOR_ADDRESS becomes a free port of this machine: a job of one host needs no known one.

Runs with -I -S, so that it starts in milliseconds; any Python 3.8.
"""

import json
import os
import resource
import signal
import socket
import sys

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ADDRESSES = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS")
CANNOT_START = 127


def main(command: "list[str]", environ: "dict[str, str]") -> int:
    """Run *command* for each rank, and return the wait status of the first rank that failed, 0 if none did."""
    ranks = json.loads(environ.pop("TOOLKIT_LOCAL_RANKS"))
    shim = environ.get("PYTHON_EXEC", "")
    environ.update(_choose_ports(environ))
    argv = [shim, *command] if shim else command
    living: "set[int]" = set()
    received: "list[int]" = []

    def pass_on(number: int, _frame: object = None) -> None:
        received.append(number)
        for pid in living:
            os.kill(pid, number)

    for signal_number in SIGNALS:
        signal.signal(signal_number, pass_on)
    started = 0
    for variables in ranks:
        if received:
            break  # The job was stopped meanwhile.
        started += 1
        living.add(os.posix_spawnp(argv[0], argv, {**environ, **variables}, setsigdef=SIGNALS))
    for number in list(received):  # noqa: PERF101 - pass_on adds to it.
        pass_on(number)
    failed = 0
    while living:
        pid, status = os.wait()
        living.discard(pid)
        if status and not failed:
            failed = status
            if not shim:
                pass_on(signal.SIGTERM)
    return failed if started else (128 + received[0]) << 8


def _choose_ports(environ: "dict[str, str]") -> "dict[str, str]":
    """Return the addresses in *environ* whose port is 0, with a free port in its place."""
    open_ = {name: environ[name] for name in ADDRESSES if environ.get(name, "").endswith(":0")}
    if not open_:
        return {}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {name: "%s:%d" % (address[:-2], port) for name, address in open_.items()}


def end_as(status: int) -> None:
    """End as a process of wait status *status* did: with its code, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    try:
        wait_status = main(sys.argv[1:], dict(os.environ))
    except OSError as error:
        sys.stderr.write("%s: cannot be started (%s)\n" % (sys.argv[1], error.strerror))
        os._exit(CANNOT_START)
    end_as(wait_status)
