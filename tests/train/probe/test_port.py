"""Ports of this machine: two jobs never choose the same one, and the holder of a taken one is named."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.ports import free_port
from toolkit.train.probe import port as port_file
from toolkit.train.probe.port import RANGE, OwnPort, holder, refused


def test_two_jobs_that_choose_at_the_same_moment_get_different_ports() -> None:
    first, second, port = OwnPort(), OwnPort(), free_port()

    assert first.take(port) == port  # Nobody listens on it yet.
    assert second.take(port) in RANGE
    first.close()
    third = OwnPort()
    assert third.take(port) == port
    second.close()
    third.close()


def test_a_claim_ends_with_its_process() -> None:
    port = free_port()
    program = f"from toolkit.train.probe.port import OwnPort; own = OwnPort(); print(own.take({port})); input()"

    with subprocess.Popen((sys.executable, "-c", program), stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{port}\n"
        during = OwnPort()
        assert during.take(port) != port
        other.kill()
        other.wait()

    during.close()
    after = OwnPort()
    assert after.take(port) == port
    after.close()


def test_a_port_that_is_taken_after_the_choice_is_left_for_another() -> None:
    own_port, port = OwnPort(), free_port()
    assert own_port.take(port) == port

    with socket.create_server(("127.0.0.1", port)):
        later = own_port.take(port)

    assert later != port
    assert own_port.port == later
    own_port.close()


def test_where_a_sandbox_denies_the_claim_a_free_port_is_chosen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AppArmor and gVisor may deny abstract Unix sockets."""

    def denied(_port: int) -> NoReturn:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(port_file, "_claimed", denied)
    own_port = OwnPort()

    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        chosen = own_port.take(taken)

    assert chosen in RANGE
    assert own_port.take(taken) == chosen


def test_the_holder_of_a_port_is_named_without_its_arguments() -> None:
    program = "import socket,sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); input()"
    command = (sys.executable, "-c", program, "--token=hidden")

    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        description = holder(port)
        assert refused(port) == "Address already in use"
        other.communicate("")

    assert description.startswith(f"process {other.pid} ({sys.executable} -c import socket")
    assert "hidden" not in description
    assert holder(port) == ""


def test_a_holder_on_ipv6_alone_is_named_too() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert holder(server.getsockname()[1]).startswith(f"process {os.getpid()} (")


def test_a_holder_that_may_not_be_looked_at_is_said_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "7").mkdir()  # Without its descriptors, as another user's.
    line = "   0: 00000000:1E61 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0"
    (tmp_path / "net/tcp").write_text(f"  sl  local_address ...\n{line}\n")

    assert holder(7777, tmp_path) == "a process that this user may not look at (another user's, or another container's)"
    assert holder(7778, tmp_path) == ""
