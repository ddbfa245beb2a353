"""`toolkit mpi-agent`: what mpirun starts in place of ssh, by a name that people can write down."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TOOLKIT = (sys.executable, "-m", "toolkit.cli.main")
WITHIN_S = 120.0


def started(*words: str, **environ: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        (*TOOLKIT, *words),
        env={"PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_it_asks_its_own_train_as_ssh_would_be_asked_and_ends_as_the_daemon_does(tmp_path: Path) -> None:
    shim_socket = tmp_path / "ranks.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shim_socket))
        listener.listen()
        listener.settimeout(WITHIN_S)
        agent = started(
            "mpi-agent", "-x", "-p", "22", "algo-2", "orted", "-mca", "ess", "env", TOOLKIT_SHIM_SOCKET=str(shim_socket)
        )
        with listener.accept()[0] as link, link.makefile("rb") as request:
            link.settimeout(WITHIN_S)
            word, length = request.readline().split()
            body = request.read(int(length))
            link.sendall(b"exit 7\n")
        out, err = agent.communicate(timeout=WITHIN_S)

    assert (word, body) == (b"launch", b"algo-2\0orted -mca ess env")
    assert (agent.returncode, out, err) == (7, b"", b"")


def test_without_a_train_it_says_so() -> None:
    agent = started("mpi-agent", "algo-2", "orted")

    _, err = agent.communicate(timeout=WITHIN_S)

    assert agent.returncode == 69
    assert err.startswith(b"mpi-agent: no train of a job of several hosts under mpirun can be reached")


def test_without_a_command_it_says_how_it_is_called() -> None:
    agent = started("mpi-agent", "-x", "algo-2")

    _, err = agent.communicate(timeout=WITHIN_S)

    assert (agent.returncode, err) == (2, b"usage: mpi-agent [SSH OPTIONS] HOST COMMAND...\n")


def test_it_is_listed() -> None:
    toolkit = started("--help")

    out, _ = toolkit.communicate(timeout=WITHIN_S)

    assert b"mpi-agent" in out
