"""Hosts that number themselves where they meet."""

import contextlib
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest
from msgspec.structs import replace

from tests.ports import free_port
from toolkit.errors import ContractError, PlatformError
from toolkit.log import Log
from toolkit.train.peers.numbering import MeetingPlace, find_number, meeting_key


def place(
    port: int,
    *,
    hosts: int = 2,
    job: str = "train",
    name: str = "a",
    wish: int = 0,
    run_id: str = "job",
    within_s: float = 60.0,
) -> MeetingPlace:
    return MeetingPlace(
        host="localhost",
        port=port,
        key=meeting_key(run_id, port, ""),
        hosts=hosts,
        job=job,
        name=name,
        wish=wish,
        is_host=None,
        within_s=within_s,
    )


def test_each_host_gets_a_number_of_its_own() -> None:
    port = free_port()

    with ThreadPoolExecutor() as threads:
        numbers = list(threads.map(lambda name: find_number(place(port, hosts=4, name=name), Log()), "abcd"))

    assert sorted(numbers) == [0, 1, 2, 3]
    # The port is free again, for the ranks to meet at.
    socket.create_server(("", port)).close()


def test_hosts_are_numbered_as_they_wish_then_by_name() -> None:
    port = free_port()
    with ThreadPoolExecutor() as threads:
        leader = threads.submit(find_number, place(port, hosts=4, name="z"), Log())
        with socket.create_connection(_listening(port)):  # It proves nothing, and holds nobody up.
            others = [
                threads.submit(find_number, place(port, hosts=4, name=name, wish=wish), Log())
                for name, wish in (("c", 1), ("b", 0), ("a", 1))
            ]
            numbers = [other.result(60) for other in others]

    assert (leader.result(60), numbers) == (0, [3, 1, 2])


def test_a_host_of_another_rendezvous_is_refused_and_the_others_meet() -> None:
    port = free_port()
    with ThreadPoolExecutor() as threads:
        leader = threads.submit(find_number, place(port), Log())
        _listening(port)
        with pytest.raises(ContractError, match="its rendezvous has another id, port or secret"):
            find_number(place(port, run_id="other"), Log())
        with pytest.raises(ContractError, match="--nnodes 3, that of the host at the rendezvous 2"):
            find_number(place(port, hosts=3), Log())
        with pytest.raises(ContractError, match=r"without --rdzv-id .*: its is 'other', here 'train'"):
            find_number(place(port, job="other"), Log())
        follower = threads.submit(find_number, place(port), Log())

        assert (leader.result(60), follower.result(60)) == (0, 1)


def test_the_host_that_numbers_says_who_has_come_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with ThreadPoolExecutor() as threads:
        guest = threads.submit(
            find_number, replace(place(port, hosts=3, name="b\x1b[2J", within_s=2.0), is_host=False), Log()
        )
        with pytest.raises(PlatformError, match=r"expected 3 hosts, found 2 within 1.5 s: 'a', 'b\\x1b\[2J'"):
            find_number(replace(place(port, hosts=3, within_s=1.5), is_host=True), Log())
        with pytest.raises(PlatformError, match="expected the host at the rendezvous to number this one, found"):
            guest.result(60)

    assert f"rendezvous at localhost:{port}: the host there has ended; trying for " in capfd.readouterr().err


def test_without_a_free_descriptor_the_host_that_numbers_tries_again_after_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = []

    class Full(socket.socket):
        def accept(self) -> NoReturn:
            tries.append(self)
            raise OSError(errno.EMFILE, "Too many open files")

    port = free_port()
    with Full() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        monkeypatch.setattr("toolkit.train.peers.numbering.listen", lambda *_: listener)
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(PlatformError, match="found 1 within 2 s"):
            find_number(place(port, within_s=2.0), Log())

    assert 1 <= len(tries) <= 8


@pytest.mark.parametrize("greeting", [b"\x04 a store\n", b""])
def test_what_listens_there_and_numbers_nobody_is_named_at_once(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.train.peers.numbering.PROVE_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        open_connections = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    open_connections.append(connection)
                    if greeting:
                        connection.sendall(greeting)

        threads.submit(answer)
        try:
            with pytest.raises(PlatformError, match="no toolkit torchrun that numbers hosts"):
                find_number(place(server.getsockname()[1], within_s=0.5), Log())
        finally:
            server.shutdown(socket.SHUT_RDWR)

    told = capfd.readouterr().err
    assert "is in use: asking who listens there" in told
    assert told.count("no toolkit torchrun that numbers hosts; trying for ") == 1
    for connection in open_connections:
        connection.close()


def test_the_words_of_a_stranger_cannot_move_the_cursor_or_begin_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"nonce":"00"}\n')
                connection.recv(4096)
                connection.sendall(b'{"refusal":"go\\n[toolkit] \\u001b[2Jaway"}\n')

        threads.submit(refuse)
        with pytest.raises(ContractError, match=r"found: go\?\[toolkit\] \?\[2Jaway"):
            find_number(place(server.getsockname()[1]), Log())


def _listening(port: int) -> tuple[str, int]:
    """Return the address once somebody listens there."""
    import time

    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.01)
        else:
            return "127.0.0.1", port
    raise TimeoutError
