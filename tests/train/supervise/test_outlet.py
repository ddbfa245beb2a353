"""An outlet in front of real pipes, a full disk and sockets: what is pending, what is lost, and what says so."""

import os
import socket

from toolkit.train.supervise.outlet import LIMIT_BYTES, Outlet

BLOCK = b"x" * 99 + b"\n"


def filled() -> tuple[int, Outlet]:
    """Return the read end of a full pipe and the outlet that has filled it."""
    read_end, write_end = os.pipe()
    outlet = Outlet(write_end)
    os.close(write_end)
    while not outlet.pending_bytes:
        outlet.put(BLOCK)
    return read_end, outlet


def drained(read_end: int) -> bytes:
    """Return what lies in the pipe."""
    os.set_blocking(read_end, False)
    output = b""
    try:
        while piece := os.read(read_end, 1 << 20):
            output += piece
    except BlockingIOError:
        pass
    return output


def test_a_line_of_our_own_never_blocks_and_is_bounded() -> None:
    read_end, outlet = filled()

    for _ in range(6):
        outlet.say(b"y" * LIMIT_BYTES)

    assert outlet.pending_bytes < 6 * LIMIT_BYTES
    assert outlet.lost_bytes >= LIMIT_BYTES
    os.close(read_end)


def test_our_own_lines_go_on_by_themselves_when_the_console_takes_again() -> None:
    read_end, outlet = filled()
    outlet.say(b"first\n")
    first_output = drained(read_end)
    outlet.say(b"second\n")

    assert first_output.endswith(BLOCK)
    assert drained(read_end).endswith(b"\nfirst\nsecond\n")
    assert (outlet.pending_bytes, outlet.lost_bytes) == (0, 0)


def test_a_console_that_takes_again_tells_how_much_is_missing() -> None:
    read_end, outlet = filled()
    assert not outlet.stalled(outlet.moved_s)
    outlet.refuse()
    assert outlet.stalled(outlet.moved_s)
    outlet.put(b"lost\n")
    outlet.put(b"lost, too\n")
    drained(read_end)
    outlet.pump()
    outlet.put(b"back\n")

    assert outlet.lost_bytes == len(b"lost\nlost, too\n")
    end = drained(read_end).splitlines()[-2:]
    assert end == [b"[toolkit] warning: 15 bytes are missing here: nobody read it", b"back"]


def test_a_stall_is_measured_from_the_last_byte_that_was_taken() -> None:
    read_end, outlet = filled()
    began_s = outlet.moved_s

    assert not outlet.stalled(began_s + 29)
    assert outlet.stalled(began_s + 30)
    os.read(read_end, 1 << 16)
    outlet.pump()
    assert not outlet.stalled(outlet.moved_s + 1)
    os.close(read_end)


def test_a_reader_that_has_gone_is_told_and_all_is_counted() -> None:
    read_end, outlet = filled()
    waiting = outlet.pending_bytes
    os.close(read_end)

    outlet.pump()
    outlet.put(b"more\n")

    assert outlet.broken
    assert (outlet.lost_bytes, outlet.reason) == (waiting + 5, "Broken pipe")


def test_on_a_full_disk_exactly_what_was_put_is_lost() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    outlet = Outlet(fd)

    for _ in range(100):
        outlet.put(BLOCK)
    outlet.say(b"ours\n")

    assert not outlet.broken
    assert (outlet.lost_bytes, outlet.pending_bytes) == (100 * len(BLOCK) + 5, 0)
    assert outlet.reason == "No space left on device"


def test_a_disk_with_room_again_gets_a_line_that_tells_what_is_missing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    outlet = Outlet(full)
    outlet.put(b"half a line")
    room, roomy = os.pipe()
    os.dup2(roomy, outlet.fd)

    outlet.put(b"back\n")

    assert drained(room) == b"\n[toolkit] warning: 11 bytes are missing here: No space left on device\nback\n"


def test_a_socket_that_is_full_does_not_block() -> None:
    near_end, theirs = socket.socketpair()
    outlet = Outlet(near_end.fileno())
    while not outlet.pending_bytes:
        outlet.put(BLOCK * 100)
    theirs.close()

    outlet.pump()

    assert outlet.broken
    near_end.close()
