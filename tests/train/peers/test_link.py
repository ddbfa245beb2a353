"""The link over real sockets: followers, strangers, broken wires, killed and stopped processes."""

import contextlib
import math
import os
import random
import re
import select
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest

from tests.train.peers.wired import KEY, TIMES, Party, child, party, wire
from toolkit.job.cause import Cause
from toolkit.job.events import AllReady, PeerFailed
from toolkit.train.peers import follower_link, leader_contact, leader_link, lookup, route
from toolkit.train.peers.follower_link import FollowerLink
from toolkit.train.peers.frames import NONCE_BYTES, Reason, Seal, encode, job_key
from toolkit.train.peers.leader_link import UNPROVED_AT_ONCE, LeaderLink, listen
from toolkit.train.peers.link_end import PROVE_WITHIN_S, SEGMENT_BYTES
from toolkit.train.peers.lookup import Address
from toolkit.train.peers.messages import EndReport, Failing, Hello, HostEnded, Ping, Ready
from toolkit.train.peers.protocol import LogLine, Timeouts
from toolkit.train.peers.reports import with_cause
from toolkit.train.peers.rivals import Rivals

# Sooner than the patience: what takes less was not noticed by silence. How soon is scripts/bench link's matter.
SOON_S = TIMES.heartbeat_timeout_s - 0.5
SUCCESS = {name: EndReport(host=name, exit_code=0) for name in (f"algo-{number}" for number in range(1, 300))}


def ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def start(together: Party) -> None:
    """Let all hosts be ready and started."""
    for link in together.links:
        link.tell(Ready())
    together.until(lambda: all(together.told(link, AllReady) for link in together.links))


def end(together: Party) -> None:
    """Let all hosts end well and leave."""
    for link in together.links:
        link.tell(HostEnded(report=SUCCESS[link.me]))
    together.until(lambda: all(link.is_finished for link in together.links))
    assert {link.verdict.exit_code for link in together.links if link.verdict} == {0}


def frame(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def stranger(together: Party, text: bytes = b"") -> socket.socket:
    """Connect as somebody, and say *text*."""
    guest = socket.create_connection(together.where, timeout=60)
    guest.sendall(text)
    return guest


def nonce_of(together: Party, guest: socket.socket) -> bytes:
    """Return the leader's nonce."""
    read = b""
    guest.setblocking(False)
    ends_s = time.monotonic() + 10
    while len(read) < 4 + NONCE_BYTES:
        assert time.monotonic() < ends_s
        together.turn()
        try:
            read += guest.recv(4 + NONCE_BYTES - len(read))
        except BlockingIOError:
            continue
    return read[4:]


def closed(together: Party, guest: socket.socket) -> bool:
    """Read to the end, which has to come."""
    guest.setblocking(False)
    ends_s = time.monotonic() + 10
    while time.monotonic() < ends_s:
        together.turn()
        try:
            if not guest.recv(1 << 16):
                return True
        except BlockingIOError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("count", [2, 5, 40])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_hosts_join_start_and_end_together(count: int, address: str) -> None:
    if address == "::1" and not ipv6():
        pytest.skip("no IPv6 here")
    with party(count, address=address) as together:
        together.followers()

        start(together)
        end(together)

        assert not together.leader.refused


def arrives(listener: socket.socket, address: str) -> bool:
    """Connect to *address* at the port of *listener*; return whether *listener* has that connection."""
    with socket.create_connection((address, listener.getsockname()[1]), timeout=60) as guest:
        listener.settimeout(60)
        accepted, origin = listener.accept()
        accepted.close()
        return bool(origin[1] == guest.getsockname()[1])


def test_a_leader_without_an_address_listens_on_all() -> None:
    with listen(None, 0) as listener:
        addresses = ["127.0.0.1", *(["::1"] if ipv6() else [])]

        arrived = [arrives(listener, address) for address in addresses]

    assert arrived == [True] * len(addresses)


@pytest.mark.parametrize("address", ["192.0.2.1", "nowhere.invalid", socket.gethostname()])
def test_a_leader_whose_address_is_not_its_own_or_a_name_listens_on_all(address: str) -> None:
    """A Kubernetes service, a public address that is translated on the way, a name that does not resolve here, or
    leads to 127.0.1.1 here."""
    with listen(address, 0) as listener:
        assert arrives(listener, "127.0.0.1")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "localhost", *(["::1"] if ipv6() else [])])
def test_a_leader_with_an_address_of_its_own_listens_on_it_alone(address: str) -> None:
    listener = listen(address, 0)

    assert listener.getsockname()[0] == ("127.0.0.1" if address == "localhost" else address)

    listener.close()


def resolve_to(addresses: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name have *addresses*."""
    monkeypatch.setattr(lookup, "resolve_addresses", lambda _host, _port, flags=0: [] if flags else addresses)


def leaders_met(link: FollowerLink) -> set[Any]:
    """Return the addresses at the far ends of *link*'s connections."""
    return {connection.sock.getpeername() for connection in link.connections}


def test_a_leader_is_found_behind_addresses_that_lead_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn: nothing listens; another program waits for its client; the leader. Each look-up begins anew."""
    with party(2) as together, socket.create_server(("127.0.0.2", together.where[1])):
        port = together.where[1]
        resolve_to([(socket.AF_INET, (each, port)) for each in ("127.0.0.3", "127.0.0.2", "127.0.0.1")], monkeypatch)
        follower = together.follower("algo-2", where=("several.invalid", port))

        start(together)

        assert leaders_met(follower) == {together.where}
        end(together)


def test_a_failure_reaches_all_hosts_and_the_leader_leaves_last() -> None:
    with party(30) as together:
        followers = together.followers()
        start(together)

        followers[7].tell(
            Failing(report=EndReport(host="algo-9", exit_code=3, cause=Cause(primary=True, message="boom")))
        )
        took_s = together.until(lambda: sum(bool(together.told(link, PeerFailed)) for link in together.links) == 29)
        for link in together.links:
            report = EndReport(
                host=link.me, exit_code=3 if link is followers[7] else 75, cause=Cause(primary=link is followers[7])
            )
            link.tell(HostEnded(report=report))
        together.until(lambda: together.leader.is_finished)

        assert took_s < SOON_S
        assert {link.verdict.host for link in together.links if link.verdict} == {"algo-9"}
        assert all(link.verdict for link in together.links)


def test_clocks_are_compared_over_the_link() -> None:
    with party(2) as together:
        (follower,) = together.followers()
        start(together)

        together.until(lambda: follower.clock.offset_ns != 0)

        assert abs(follower.clock.offset_ns) < 50_000_000  # One machine: what is left is the way.


def test_a_host_with_another_key_is_refused_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_link, "REFUSED_RETRY_S", 0.05)
    with party(3) as together:
        wrong = together.follower("algo-3", key=job_key(b"other", (), b""))
        together.follower("algo-2")
        together.until(lambda: bool(together.told(wrong, LogLine)) and bool(together.leader.refused))

        ((reason, count),) = together.leader.refused.items()
        together.links.remove(wrong)
        wrong.close()
        together.follower("algo-3")
        start(together)

        assert "not sealed with this job's key" in reason
        assert count >= 1
        assert "TOOLKIT_JOB_SECRET" in str(together.told(wrong, LogLine))
        assert "from 127.0.0.1" in str(together.told(together.leader, LogLine))


def test_a_host_that_is_refused_says_so_when_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_link, "REFUSED_RETRY_S", 0.05)
    with party(2, times=msgspec.structs.replace(TIMES, join_s=1.0)) as together:
        wrong = together.follower("algo-2", key=job_key(b"other", (), b""))

        together.until(lambda: wrong.verdict is not None)

        assert wrong.verdict is not None
        assert wrong.verdict.exit_code == 75
        assert "refused this host: TOOLKIT_JOB_SECRET" in wrong.verdict.cause.message


def test_the_bytes_of_another_connection_open_no_door() -> None:
    with party(2) as together, wire(together) as between:
        together.follower("algo-2", where=between.where)
        start(together)
        together.until(lambda: len(between.recorded[0]) > 300)

        guest = stranger(together, between.recorded[0])
        refused = closed(together, guest)
        guest.close()
        end(together)

        assert refused
        assert sum(together.leader.refused.values()) == 1


def test_a_proof_must_name_a_host_of_the_job() -> None:
    with party(2) as together:
        guest = stranger(together)
        leader_nonce, own = nonce_of(together, guest), b"n" * NONCE_BYTES
        sealed = Seal(KEY, leader_nonce, own, "up").seal(encode(Hello(host="algo-7", mark="")))

        guest.sendall(frame(own + sealed[4:]))

        assert closed(together, guest)
        assert list(together.leader.refused) == ["a host that is not of this job"]
        guest.close()


def test_a_first_message_must_be_a_hello() -> None:
    with party(2) as together:
        guest = stranger(together)
        leader_nonce, own = nonce_of(together, guest), b"n" * NONCE_BYTES
        sealed = Seal(KEY, leader_nonce, own, "up").seal(encode(Ping(sent_ns=1)))

        guest.sendall(frame(own + sealed[4:]))

        assert closed(together, guest)
        guest.close()


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\nHost: algo-1\r\n\r\n",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        frame(b"short"),
        frame(b"x" * 1000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        os.urandom(100_000),
    ],
)
def test_what_is_no_message_of_ours_is_refused(text: bytes) -> None:
    with party(2) as together:
        together.followers()
        start(together)

        guest = stranger(together, text)
        refused = closed(together, guest)
        guest.close()
        end(together)

        assert refused
        assert sum(together.leader.refused.values()) == 1


def babble(chance: random.Random) -> bytes:
    """Return what a stranger may say: another protocol, noise, any length, a proof of nothing."""
    length = chance.choice([0, 1, 31, 63, 64, 1024, 1025, 1 << 20, 1 << 31, (1 << 32) - 1, chance.getrandbits(32)])
    return chance.choice(
        [
            chance.randbytes(chance.randrange(2000)),
            b"GET /%d HTTP/1.1\r\nHost: algo-1\r\n\r\n" % chance.getrandbits(64),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(600),
            length.to_bytes(4, "big") + chance.randbytes(min(length, 1500)),
            frame(chance.randbytes(NONCE_BYTES) + chance.randbytes(32) + b'{"type":"hello","host":"algo-2","mark":""}'),
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_whatever_strangers_say_the_log_gets_one_line_of_a_kind_and_the_job_goes_on(seed: int) -> None:
    chance = random.Random(seed)
    with party(2) as together:
        together.followers()
        start(together)

        for _ in range(20):
            guests = [stranger(together, babble(chance)) for _ in range(20)]
            together.turn(0)
            for guest in guests:
                guest.close()
        together.turn(0)
        end(together)

        said = [action.text for action in together.told(together.leader, LogLine) if isinstance(action, LogLine)]
        assert sum(together.leader.refused.values()) > 200
        assert set(together.leader.refused) <= set(get_args(Reason))
        assert len(said) == len(together.leader.refused)


def test_a_follower_at_a_strangers_door_says_each_kind_once() -> None:
    chance = random.Random(1)
    with party(2) as together, socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        follower = together.follower("algo-2", where=other.getsockname())
        guests: list[socket.socket] = []

        def answer() -> None:
            try:
                guest, _ = other.accept()
            except BlockingIOError:
                return
            guest.sendall(babble(chance))
            guests.append(guest)

        together.others.append(answer)
        together.until(lambda: len(guests) >= 10)

        said = [action.text for action in together.told(follower, LogLine) if isinstance(action, LogLine)]
        assert set(follower.refused) <= set(get_args(Reason))
        assert len(said) <= len(follower.refused) + 1  # And that it was refused.
        for guest in guests:
            guest.close()


def test_something_else_at_the_leaders_address_is_refused() -> None:
    with party(2) as together, socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        follower = together.follower("algo-2", where=other.getsockname())
        guests: list[socket.socket] = []

        def greet() -> None:
            try:
                guest, _ = other.accept()
            except BlockingIOError:
                return
            guest.sendall(frame(b"220 mail.example.com"))
            guests.append(guest)

        together.others.append(greet)
        together.until(lambda: bool(follower.refused))

        assert list(follower.refused) == ["something at the leader's address that is no leader"]
        for guest in guests:
            guest.close()


def test_a_leader_without_the_key_is_not_believed() -> None:
    with party(2) as together, socket.create_server(("127.0.0.1", 0)) as other:
        follower = together.follower("algo-2", where=other.getsockname())
        together.turn()
        guest, _ = other.accept()
        impostor = Seal(b"guessed", b"l" * NONCE_BYTES, b"f" * NONCE_BYTES, "down")

        guest.sendall(frame(b"l" * NONCE_BYTES) + impostor.seal(encode(Ready())))
        together.until(lambda: bool(follower.refused))

        assert "not sealed with this job's key" in next(iter(follower.refused))
        assert follower.verdict is None
        guest.close()


def test_a_connection_that_says_nothing_is_closed_in_time() -> None:
    with party(2) as together:
        together.followers()
        start(together)
        guest, half = stranger(together), stranger(together, b"\x00\x00\x00")

        took_s = together.until(lambda: sum(together.leader.refused.values()) == 2)
        end(together)

        assert PROVE_WITHIN_S - 0.5 < took_s < PROVE_WITHIN_S + SOON_S
        assert list(together.leader.refused) == ["a connection that proved nothing in time"]
        guest.close()
        half.close()


def test_a_flood_of_strangers_drives_out_itself_and_no_host() -> None:
    with party(3) as together:
        first = together.follower("algo-2")
        first.tell(Ready())
        together.leader.tell(Ready())
        together.until(lambda: first.clock.offset_ns != 0)
        guests = []
        for _ in range(2000):
            guests.append(stranger(together))
            if len(guests) % 100 == 0:
                together.turn(0)

        late = together.follower("algo-3")
        late.tell(Ready())
        took_s = together.until(lambda: all(together.told(link, AllReady) for link in together.links))
        end(together)

        assert took_s < SOON_S
        assert sum(together.leader.refused.values()) >= 2000 - UNPROVED_AT_ONCE - 3
        for guest in guests:
            guest.close()


def test_with_no_descriptor_left_the_oldest_stranger_goes() -> None:
    """In a child: the limit is the whole process's."""
    import resource

    def serve() -> None:
        soft = len(list(Path("/proc/self/fd").iterdir())) + 12
        with party(2) as together:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
            guests = []
            while True:
                guest = socket.socket()
                try:
                    guest.connect(together.where)
                except OSError:
                    guest.close()
                    break
                guests.append(guest)
                together.turn(0)
                if together.leader.refused:
                    os._exit(7 if "no descriptor was left" in next(iter(together.leader.refused)) else 8)
        os._exit(9)

    pid = os.fork()
    if pid == 0:
        try:
            serve()
        finally:
            os._exit(10)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_second_train_of_a_host_is_told_to_end_and_the_first_goes_on() -> None:
    with party(3) as together:
        together.followers()
        start(together)

        second = together.follower("algo-2")
        second.tell(Ready())
        together.until(lambda: second.verdict is not None)
        together.links.remove(second)
        second.close()
        end(together)

        assert second.verdict is not None
        assert second.verdict.exit_code == 75
        assert second.verdict.cause.message.startswith("another train of this job is already host algo-2")
        assert list(together.leader.refused) == ["a second train of a host that has joined already"]


# A third of it is waited for before a second connection is made.
QUICK = Timeouts(heartbeat_s=0.1, heartbeat_timeout_s=1.8, join_s=30.0, finish_timeout_s=0.0, grace_s=1.0)


def test_a_connection_that_tcp_is_slow_to_heal_is_replaced_within_the_patience() -> None:
    with party(2, times=QUICK) as together, wire(together) as between:
        together.follower("algo-2", where=between.where)
        start(together)

        for count in (2, 3):
            between.stick()
            together.until(lambda count=count: between.connections == count)  # type: ignore[misc]
        end(together)

        assert not any(together.told(link, PeerFailed) for link in together.links)
        assert not together.leader.refused


def test_a_connection_that_is_taken_and_closed_is_tried_again_within_the_patience() -> None:
    with party(2) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        between.closes = True
        between.cut()
        together.until(lambda: between.closed >= 20)  # Every 0.1 s: longer than a broken connection may stay away.
        between.closes = False
        together.until(lambda: between.connections == 2)
        end(together)

        assert not any(together.told(link, PeerFailed) for link in together.links)
        assert not any(
            "SECRET" in action.text for action in together.told(follower, LogLine) if isinstance(action, LogLine)
        )


def test_a_path_that_is_cut_at_every_new_connection_is_given_up_after_the_patience() -> None:
    with party(2, times=QUICK) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        between.closes = True
        between.cut()
        took_s = together.until(lambda: all(link.verdict for link in together.links))

        assert took_s > 1.0
        assert follower.verdict is not None
        assert follower.verdict.exit_code == 75


@pytest.mark.parametrize(("alone", "tries"), [("holds", 3), ("resets", 13)])
def test_a_load_balancer_that_reaches_no_leader_for_a_while_ends_no_job(
    alone: Literal["holds", "resets"], tries: int
) -> None:
    with party(2) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        between.alone = alone
        between.cut()
        took_s = together.until(lambda: between.closed >= tries)
        between.alone = ""
        together.until(lambda: between.connections == 2)
        end(together)

        said = [action.text for action in together.told(follower, LogLine) if isinstance(action, LogLine)]
        assert took_s > 1.0  # A connection that is only broken may be away for less.
        assert not any(together.told(link, PeerFailed) for link in together.links)
        assert sum(f"takes connections at 127.0.0.1 port {between.where[1]}" in text for text in said) == 1


def test_a_leader_whose_kernel_has_no_room_for_a_new_connection_for_a_while_ends_no_job() -> None:
    with party(2) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        between.cut()
        between.drop()
        silent_until_s = time.monotonic() + 1.5  # A connection that is refused may be away for less.
        together.until(lambda: time.monotonic() > silent_until_s or follower.verdict is not None)
        between.stalled = False
        together.until(lambda: bool(follower.verdict) or any(len(sent) > 200 for sent in between.recorded))
        end(together)

        assert not any(together.told(link, PeerFailed) for link in together.links)


def test_a_load_balancer_that_never_reaches_the_leader_again_is_told_after_the_patience() -> None:
    with party(2, times=QUICK) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        between.alone = "closes"
        between.cut()
        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        assert follower.verdict.cause.message == (
            "host algo-1 vanished: its connection was lost and not re-established: something takes connections at"
            f" 127.0.0.1 port {between.where[1]} and does not answer as the leader"
        )


def test_a_leader_behind_a_program_that_waits_for_its_client_is_found_at_its_next_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route, "PROVE_WITHIN_S", 0.3)
    monkeypatch.setattr(route, "TRIES", 1 << 30)  # Not by chance.
    with party(2) as together, socket.create_server(("127.0.0.1", 0)) as http:
        follower = together.follower("algo-2", where=http.getsockname(), others=(1, together.where[1]))

        start(together)

        assert leaders_met(follower) == {together.where}
        end(together)


def test_a_follower_says_what_it_finds_in_the_leaders_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "PROVE_WITHIN_S", 0.3)
    times = msgspec.structs.replace(TIMES, join_s=1.0)
    with party(2, times=times) as together, socket.create_server(("127.0.0.1", 0)) as http:
        follower = together.follower("algo-2", where=http.getsockname(), others=(1, 2))

        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        port = http.getsockname()[1]
        cause = follower.verdict.cause.message
        assert f"something takes connections at 127.0.0.1 port {port} and does not answer as the leader" in cause
        assert (
            f"the first free one of ports {port}, 1, 2: if all are taken, on every host set TOOLKIT_LINK_PORT" in cause
        )


def test_a_leader_that_is_too_slow_to_answer_a_proof_has_refused_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "PROVE_WITHIN_S", 0.2)
    times = msgspec.structs.replace(TIMES, join_s=1.0)
    with party(2, times=times) as together, socket.create_server(("127.0.0.1", 0)) as slow:
        slow.setblocking(False)
        follower = together.follower("algo-2", where=slow.getsockname())
        guests: list[socket.socket] = []

        def greet() -> None:
            with contextlib.suppress(BlockingIOError):
                guests.append(slow.accept()[0])
                guests[-1].sendall(frame(b"l" * NONCE_BYTES))

        together.others.append(greet)
        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        assert follower.verdict.exit_code == 75
        assert "refused" not in follower.verdict.cause.message
        assert len(guests) > 1
        for guest in guests:
            guest.close()


@pytest.mark.parametrize("primary", [True, False], ids=["cause", "echo"])
def test_a_path_that_drops_large_messages_still_tells_what_failed(primary: bool) -> None:
    report = EndReport(
        host="algo-2",
        exit_code=3,
        cause=Cause(primary=primary, failed_ns=time.monotonic_ns(), message="boom " * 1000, process="rank 1"),
    )
    whole = with_cause(report, traceback="at every line\n" * 5000)
    with party(2, times=QUICK) as together, wire(together) as between:
        between.largest_bytes = 1400
        follower = together.follower("algo-2", where=between.where)
        start(together)

        for message in (Failing(report=whole), HostEnded(report=whole)):
            follower.tell(message)
        together.leader.tell(
            HostEnded(report=msgspec.structs.replace(with_cause(report, primary=False, failed_ns=0), host="algo-1"))
        )
        together.until(lambda: all(link.verdict for link in together.links))

        verdict = together.leader.verdict
        assert verdict is not None
        assert (verdict.host, verdict.exit_code, verdict.cause.process) == ("algo-2", 3, "rank 1")
        assert verdict.cause.message.startswith("boom boom")
        assert follower.verdict is not None
        assert (follower.verdict.host, follower.verdict.exit_code) == ("algo-2", 3)


def test_the_whole_report_takes_the_place_of_the_first_news() -> None:
    report = EndReport(
        host="algo-2",
        exit_code=3,
        cause=Cause(primary=True, failed_ns=5, message="boom " * 1000, traceback="line\n" * 5000),
    )
    with party(2) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)

        follower.tell(Failing(report=report))
        together.leader.tell(HostEnded(report=SUCCESS["algo-1"]))
        follower.tell(HostEnded(report=report))
        together.until(lambda: all(link.verdict for link in together.links))

        assert all(
            link.verdict is not None and link.verdict.cause.traceback == report.cause.traceback
            for link in together.links
        )


def test_both_ends_send_segments_that_every_path_takes() -> None:
    """The far end of a follower's connection does, too, although it asks for nothing itself."""
    with party(2) as together, socket.create_server(("127.0.0.1", 0)) as other:
        link = together.follower("algo-2", where=other.getsockname())
        together.until(lambda: bool(select.select([other], [], [], 0)[0]))

        with other.accept()[0] as far:
            ends = [far, *(connection.sock for connection in link.connections)]
            segments = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for end in ends]

    assert len(segments) == 2
    assert max(segments) <= SEGMENT_BYTES


def test_an_address_of_a_family_that_this_host_has_not_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with party(2) as together:
        port = together.where[1]
        resolve_to([(socket.AF_X25, ("127.0.0.9", port)), (socket.AF_INET, ("127.0.0.1", port))], monkeypatch)
        follower = together.follower("algo-2", where=("both.invalid", port))

        start(together)

        assert leaders_met(follower) == {together.where}
        end(together)


def test_a_connection_that_is_cut_is_made_again() -> None:
    with party(2) as together, wire(together) as between:
        (follower,) = [together.follower("algo-2", where=between.where)]
        start(together)

        for count in (2, 3, 4):
            between.cut()
            together.until(lambda count=count: between.connections == count)  # type: ignore[misc]
            together.until(lambda: len(between.recorded[-1]) > 200)
        end(together)

        assert not together.told(follower, PeerFailed)


def test_two_hundred_hosts_whose_connections_all_break_at_once_are_all_back() -> None:
    """scripts/bench link does the same with thousands."""
    with party(201) as together:
        followers = together.followers()
        start(together)
        for _ in range(2):
            break_all(together, followers)
        end(together)

        assert not together.leader.protocol.members.gone


def break_all(together: Party, links: list[FollowerLink]) -> None:
    """Break the connections of *links*, and wait until all have proved themselves on new ones."""
    members = together.leader.protocol.members
    for link in links:
        for connection in link.connections:
            connection.sock.shutdown(socket.SHUT_RDWR)
    together.until(lambda: len(members.away) > 0)
    together.until(lambda: not members.away)


def test_a_host_that_dies_after_all_had_reconnected_is_missed_as_soon_as_before() -> None:
    """All have one address: a connection from it that counted for ever would let the host seem to come back."""
    with party(11) as together:
        *_, dies = followers = together.followers()
        start(together)
        break_all(together, followers)

        together.links.remove(dies)
        dies.close()

        took_s = together.until(lambda: bool(together.told(together.leader, PeerFailed)))

        assert took_s < SOON_S


def test_what_was_said_while_the_wire_was_cut_arrives() -> None:
    with party(2) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)
        between.cut()

        follower.tell(Failing(report=EndReport(host="algo-2", exit_code=3, cause=Cause(primary=True, message="boom"))))
        took_s = together.until(lambda: bool(together.told(together.leader, PeerFailed)))

        assert took_s < SOON_S


@pytest.mark.parametrize("lost", ["algo-1", "algo-2"])
def test_a_wire_that_is_cut_off_is_seen_within_the_patience(lost: str) -> None:
    times = msgspec.structs.replace(TIMES, heartbeat_timeout_s=1.0)
    with party(2, times=times) as together, wire(together) as between:
        follower = together.follower("algo-2", where=between.where)
        start(together)
        between.stalled = True
        here = together.leader if lost == "algo-2" else follower

        took_s = together.until(lambda: bool(together.told(here, PeerFailed)))

        (news,) = together.told(here, PeerFailed)
        assert took_s < SOON_S
        assert isinstance(news, PeerFailed)
        assert re.search(f"host {lost} vanished: nothing was heard of it for [1-9][0-9.]* s", news.text)


def serve_leader(listener: socket.socket, hosts: tuple[str, ...], times: Timeouts) -> None:
    leader = LeaderLink(hosts, KEY, times, listener)
    leader.tell(Ready())
    while True:
        leader.serve()
        time.sleep(0.005)


def serve_follower(where: tuple[str, int], times: Timeouts) -> None:
    follower = FollowerLink("algo-2", "algo-1", KEY, times, where)
    follower.tell(Ready())
    while True:
        follower.serve()
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGKILL, "its connection was lost"), (signal.SIGSTOP, "nothing was heard of it for ")],
)
def test_a_leader_that_is_killed_or_stopped_is_seen_in_time(number: int, how: str) -> None:
    times = msgspec.structs.replace(TIMES, heartbeat_timeout_s=1.0)
    listener = listen("127.0.0.1", 0)
    with child(lambda: serve_leader(listener, ("algo-1", "algo-2"), times)) as pid:
        where = listener.getsockname()
        listener.close()
        with party(1, times=times) as together:
            follower = together.follower("algo-2", where=where)
            follower.tell(Ready())
            together.until(lambda: bool(together.told(follower, AllReady)))

            os.kill(pid, number)
            together.until(lambda: follower.verdict is not None)

            assert follower.verdict is not None
            assert (follower.verdict.host, follower.verdict.exit_code) == ("algo-1", 75)
            assert how in follower.verdict.cause.message
            assert together.told(follower, PeerFailed)


@pytest.mark.parametrize(
    ("number", "how"),
    [(signal.SIGKILL, "its connection was lost"), (signal.SIGSTOP, "nothing was heard of it for ")],
)
def test_a_follower_that_is_killed_or_stopped_is_seen_in_time(number: int, how: str) -> None:
    times = msgspec.structs.replace(TIMES, heartbeat_timeout_s=1.0)
    with party(3, times=times) as together:
        third = together.follower("algo-3")
        with child(lambda: serve_follower(together.where, times), closed=together.links) as pid:
            start(together)

            os.kill(pid, number)
            together.until(lambda: bool(together.told(third, PeerFailed)))

            (news,) = together.told(third, PeerFailed)
            assert isinstance(news, PeerFailed)
            assert "host algo-2 vanished" in news.text
            assert how in news.text


def test_a_leader_that_wakes_up_after_its_follower_ended_well_and_gave_it_up_has_not_succeeded() -> None:
    with party(2, times=QUICK) as together:
        (follower,) = together.followers()
        start(together)

        follower.tell(HostEnded(report=SUCCESS["algo-2"]))
        together.links.remove(together.leader)
        together.until(lambda: follower.verdict is not None)
        together.links.append(together.leader)
        together.leader.tell(HostEnded(report=SUCCESS["algo-1"]))
        together.until(lambda: together.leader.is_finished)

        assert together.leader.verdict is not None
        assert (together.leader.verdict.host, together.leader.verdict.exit_code) == ("algo-1", 75)


def test_a_stopped_follower_that_wakes_up_reads_what_became_of_the_job() -> None:
    times = msgspec.structs.replace(TIMES, heartbeat_timeout_s=1.0)
    with party(2, times=times) as together:
        follower = together.follower("algo-2")
        start(together)
        together.links.remove(follower)  # It is not served any more: as good as stopped.
        together.until(lambda: bool(together.told(together.leader, PeerFailed)))
        together.leader.tell(HostEnded(report=EndReport(host="algo-1", exit_code=75)))
        together.until(lambda: together.leader.is_finished)
        together.leader.close()
        together.links.clear()

        together.links.append(follower)
        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        assert follower.verdict.host == "algo-2"
        assert "nothing was heard of it" in follower.verdict.cause.message


def test_a_reader_that_is_slow_gets_everything_and_holds_up_nobody() -> None:
    report = EndReport(host="algo-1", exit_code=3, cause=Cause(primary=True, message="c" * 8000, traceback="t" * 60000))
    with party(3, send_buffer_bytes=4096) as together:
        slow, quick = together.followers()
        start(together)
        together.links.remove(slow)

        together.leader.tell(Failing(report=report))
        together.leader.tell(HostEnded(report=report))
        quick.tell(HostEnded(report=EndReport(host="algo-3", exit_code=75)))
        took_s = together.until(lambda: quick.verdict is not None)
        waiting = not together.leader.is_finished
        together.links.append(slow)
        together.until(lambda: slow.verdict is not None)

        assert took_s < SOON_S
        assert waiting
        assert slow.verdict == quick.verdict
        assert slow.verdict is not None
        assert slow.verdict.cause.traceback == report.cause.traceback


def test_a_link_has_nothing_to_do_once_it_has_the_verdict() -> None:
    """Its host may still be saving: no reconnects, no spinning."""
    with party(2) as together:
        (follower,) = together.followers()
        start(together)
        together.leader.tell(
            HostEnded(report=EndReport(host="algo-1", exit_code=3, cause=Cause(primary=True, message="boom")))
        )
        follower.tell(HostEnded(report=EndReport(host="algo-2", exit_code=75)))
        together.until(lambda: together.leader.is_finished)
        together.turn(0)

        assert follower.due_in_s() > 0.1
        assert together.leader.due_in_s() > 0.1


@pytest.mark.parametrize("runs", [True, False], ids=["while the job runs", "before its start"])
def test_a_leader_that_is_started_again_within_a_moment_is_another_process(runs: bool) -> None:
    """docker --restart, or a kubelet that restarts a container in place, is quicker than the loss of a connection."""
    with party(3) as together:
        followers = together.followers()
        if runs:
            start(together)
        else:
            together.until(lambda: all(follower.protocol.leader_mark for follower in followers))
        address, port = together.where
        together.links.remove(together.leader)
        together.leader.close()

        again = LeaderLink(together.hosts, KEY, together.times, listen(address, port))
        together.links.append(again)
        together.done[again] = []
        again.tell(Ready())
        took_s = together.until(lambda: all(link.is_finished for link in together.links))

        for link in together.links:
            assert link.verdict is not None
            assert (link.verdict.host, link.verdict.exit_code) == ("algo-1", 75)
            assert link.verdict.cause.message == (
                "host algo-1 vanished: its train ended, and another process was started in its place"
            )
            assert bool(together.told(link, AllReady)) == (runs and link is not again)
        assert took_s < SOON_S
        assert list(again.refused) == ["a host that had joined an earlier train of the leader"]


def test_a_host_that_is_started_again_as_its_leader_is_hears_that_the_job_has_ended() -> None:
    """Only algo-2 knew the first leader. The new algo-3 would wait for TOOLKIT_JOIN_S for one that has ended."""
    with party(3) as together:
        _, replaced = together.followers()
        start(together)
        address, port = together.where
        for link in (together.leader, replaced):
            together.links.remove(link)
            link.close()
        again = LeaderLink(together.hosts, KEY, together.times, listen(address, port))
        together.links.append(again)
        together.done[again] = []
        together.until(lambda: again.verdict is not None)
        assert not again.is_finished

        late = together.follower("algo-3")
        took_s = together.until(lambda: all(link.is_finished for link in together.links))

        assert late.verdict is not None
        assert (late.verdict.host, late.verdict.exit_code) == ("algo-1", 75)
        assert took_s < SOON_S


def test_a_known_cause_stays_the_cause_where_the_leader_is_started_again() -> None:
    with party(2) as together:
        (follower,) = together.followers()
        start(together)
        address, port = together.where
        together.links.remove(together.leader)
        together.leader.close()
        follower.tell(Failing(report=with_cause(EndReport(host="algo-2", exit_code=3), primary=True, failed_ns=1)))

        again = LeaderLink(together.hosts, KEY, together.times, listen(address, port))
        together.links.append(again)
        together.done[again] = []
        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        assert (follower.verdict.host, follower.verdict.exit_code) == ("algo-2", 3)


@pytest.mark.parametrize(
    ("tag", "itself", "more"),
    [
        (b"this job", False, "; host algo-1 leads this job, as this host, algo-2, does: give every host the same list"),
        (b"another.", False, ""),
        (b"this job", True, ""),  # The other's name leads to this host.
    ],
    ids=["both lead", "another job's leader", "its own port"],
)
def test_a_host_that_leads_says_that_a_missing_host_leads_too(
    tag: bytes, itself: bool, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Rivals] = []

    class Look(Rivals):
        def close(self) -> None:
            super().close()
            looks.append(self)

    monkeypatch.setattr(leader_link, "Rivals", Look)
    times = msgspec.structs.replace(TIMES, join_s=0.4)
    with party(2, times=times, tag=b"this job") as together:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1] if itself else together.where[1]
        places = {"algo-1": "127.0.0.1"}
        second = LeaderLink(("algo-2", "algo-1"), KEY, times, listener, tag=tag, rivals=places, port=port)
        together.links.append(second)
        together.done[second] = []
        second.tell(Ready())

        together.until(lambda: len(looks) > 0 and second.verdict is not None)

        said = second.protocol.barrier.take_reminder({"algo-1"}, math.inf)
        assert said.partition(" of hosts")[0] == f"waiting for host algo-1 to join{more}"
        assert second.verdict is not None
        assert second.verdict.cause.message.startswith("waited 0.4 s in vain for host algo-1 (TOOLKIT_JOIN_S)")
        assert not together.leader.refused and not second.refused


def test_a_follower_whose_job_has_another_name_says_that_another_jobs_leader_answers() -> None:
    times = msgspec.structs.replace(TIMES, join_s=1.0)
    with party(2, times=times, tag=b"another.") as together:
        follower = together.follower("algo-2", tag=b"this one", facts={"the job's name": "pod-1"})

        together.until(lambda: follower.verdict is not None)

        assert follower.verdict is not None
        assert (
            f"the leader of another job answers at 127.0.0.1 port {together.where[1]}; if it should be this job's, give"
            " every host the same job name and list of hosts (here the job's name is pod-1)"
        ) in follower.verdict.cause.message
        assert list(follower.refused) == ["the leader of another job at the leader's address"]


def test_another_job_at_the_leaders_port_is_passed_over_by_both_until_the_leader_is_found() -> None:
    """Two jobs on the same nodes: the second one's leader has another port, and may come later than its hosts."""
    other_key, other, own = job_key(b"another", ("algo-1", "algo-2"), b""), b"another.", b"this one"
    with party(2, tag=other) as first, party(2, tag=own) as second:
        ours = second.follower("algo-2", where=first.where, others=(second.where[1],), tag=own)
        first.links.append(ours)
        stranger = first.follower("algo-2", key=other_key, tag=own)
        theirs = first.follower("algo-2", tag=other)
        first.links.remove(ours)

        start(second)
        first.until(lambda: not first.leader.protocol.members.absent)

        assert ours.verdict is None
        assert stranger.verdict is None
        assert theirs.verdict is None
        assert second.leader.verdict is None


@pytest.mark.parametrize(
    ("name", "theirs", "what"),
    [
        ("the list of hosts", "#2", "the list of hosts differs"),
        ("a hyperparameter", "#3", "a hyperparameter differs"),
        ("the version of the toolkit", "0.2.0", "differs (the leader has 0.1.0, this host 0.2.0)"),
        ("the distribution", "", "the distribution differs (the leader has smddp, this host none)"),
    ],
)
@pytest.mark.parametrize("host", ["algo-2", "algo-9"])
def test_a_host_with_the_secret_and_other_documents_ends_the_job_with_what_differs(
    name: str, theirs: str, what: str, host: str
) -> None:
    facts = {
        "the version of the toolkit": "0.1.0",
        "the list of hosts": "#1",
        "the distribution": "smddp",
        "a hyperparameter": "#1",
    }
    with party(2, facts=facts) as together:
        follower = together.follower(host, facts={**facts, name: theirs})

        together.until(lambda: all(link.verdict is not None for link in together.links))

        for link in together.links:
            assert link.verdict is not None
            assert (link.verdict.host, link.verdict.exit_code) == (host, 78)
            assert what in link.verdict.cause.message
        assert follower.is_finished
        assert list(together.leader.refused) == ["a host whose documents or version differ from the leader's"]


def test_a_setting_of_one_host_alone_is_said_on_both_and_the_leaders_counts() -> None:
    facts = {"TOOLKIT_RESTARTS": "3"}
    with party(2, facts=facts) as together:
        follower = together.follower("algo-2", facts={"TOOLKIT_RESTARTS": "0"})

        start(together)

        text = "host algo-2: TOOLKIT_RESTARTS differs (the leader has 3, this host 0); the leader's counts."
        text += " Set it on every host"
        for link in (together.leader, follower):
            together.until(lambda link=link: LogLine(text=text, warns=True) in together.done[link])  # type: ignore[misc]


def test_connections_that_end_after_the_proof_are_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of strangers at the leader displaces a host that has not proved itself yet, again and again."""
    monkeypatch.setattr(leader_contact, "REFUSED_S", 0.2)
    monkeypatch.setattr(follower_link, "REFUSED_RETRY_S", 0.05)
    times = msgspec.structs.replace(TIMES, join_s=2.0)
    with party(2, times=times) as together, socket.create_server(("127.0.0.1", 0)) as flooded:
        flooded.setblocking(False)
        link = together.follower("algo-2", where=flooded.getsockname())
        guests: list[socket.socket] = []
        proofs = 0

        def drop() -> None:
            nonlocal proofs
            with contextlib.suppress(BlockingIOError):
                guests.append(flooded.accept()[0])
                guests[-1].sendall(frame(b"l" * NONCE_BYTES))
                guests[-1].setblocking(False)
            for guest in guests:
                with contextlib.suppress(OSError):
                    if guest.recv(1 << 16):
                        proofs += 1
                        guest.close()

        together.others.append(drop)
        together.until(lambda: link.verdict is not None)

        assert link.verdict is not None
        assert (link.verdict.exit_code, proofs > 2) == (75, True)
        for guest in guests:
            guest.close()
