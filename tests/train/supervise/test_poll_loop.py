"""The poll loop by itself, with real pipes as processes and as a console."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.train.supervise.console import Console, Outlets
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.relay import Stream

BLOCK = b"x" * 1023 + b"\n"
WITHIN_S = 60.0


class Pipes:
    """A console of two pipes, and the poll_loop of a process that writes to both."""

    def __init__(self, folder: Path) -> None:
        self.out_end, out = os.pipe()
        self.err_end, err = os.pipe()
        self.console = Console(
            host="algo-1",
            prefix_ranks=False,
            make_monitor=lambda rank, host: None,
            files=None,
            file_bytes=1 << 20,
            note=lambda text: None,
            outlets=Outlets(out, err),
        )
        self.poll_loop = PollLoop(self.console)
        (out_of_it, self.stdout), (err_of_it, self.stderr) = os.pipe(), os.pipe()
        self.poll_loop.add(Stream(out_of_it, self.console.stdout, way="alone"))
        self.poll_loop.add(Stream(err_of_it, self.console.stderr, way="alone"))
        for fd in (self.stdout, self.stderr, self.out_end, self.err_end):
            os.set_blocking(fd, False)
        self.ours = [self.out_end, self.err_end, out, err, self.stdout, self.stderr]

    def fill_stdout(self) -> int:
        """Write to stdout, which nobody reads, until the loop takes no more; return the bytes written."""
        written, ends_s, idle = 0, time.monotonic() + WITHIN_S, 0
        while idle < 20 and time.monotonic() < ends_s:
            try:
                written += os.write(self.stdout, BLOCK)
                idle = 0
            except BlockingIOError:
                self.poll_loop.step(0.0)
                idle += 1
        assert idle == 20, "the loop took every byte, and a console that nobody reads grows without limit"
        return written


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Pipes]:
    pipes = Pipes(tmp_path)
    yield pipes
    for fd in pipes.ours:
        try:
            os.close(fd)
        except OSError:
            pass


def taken(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""


def test_a_full_stdout_does_not_hold_back_stderr(pipes: Pipes) -> None:
    pipes.fill_stdout()
    os.write(pipes.stderr, b"it failed\n")

    data, ends_s = b"", time.monotonic() + WITHIN_S
    while not data and time.monotonic() < ends_s:
        pipes.poll_loop.step(0.1)
        data = taken(pipes.err_end)

    assert data == b"it failed\n"


def test_what_waited_for_a_full_console_arrives_whole_once_it_is_read(pipes: Pipes) -> None:
    written = pipes.fill_stdout()
    os.close(pipes.stdout)
    os.close(pipes.stderr)

    arrived, ends_s = b"", time.monotonic() + WITHIN_S
    while len(arrived) < written and time.monotonic() < ends_s:
        pipes.poll_loop.step(0.0)
        arrived += taken(pipes.out_end)

    assert arrived == BLOCK * (written // len(BLOCK)) and len(arrived) == written
    assert pipes.poll_loop.drained


def test_a_descriptor_may_be_unwatched_by_the_handler_of_another_one(pipes: Pipes) -> None:
    (first, into_one), (other, into_other) = os.pipe(), os.pipe()
    pipes.ours += [first, into_one, other, into_other]
    ready: list[int] = []

    def hear(fd: int, silenced: int) -> None:
        ready.append(fd)
        pipes.poll_loop.unwatch(silenced)

    pipes.poll_loop.watch(first, lambda: hear(first, other))
    pipes.poll_loop.watch(other, lambda: hear(other, first))
    os.write(into_one, b"!")
    os.write(into_other, b"!")
    for _ in range(3):
        pipes.poll_loop.step(0.0)

    assert len(set(ready)) == 1


def test_a_line_whose_rest_waits_in_the_pipe_of_a_full_console_is_not_shown_in_part(pipes: Pipes) -> None:
    """Reads end within lines, and while the console is full, the rest of a line is not read."""
    pipes.console.stdout.states_s = 0.05
    out_of_it, stdout = os.pipe()
    pipes.ours.append(stdout)
    pipes.poll_loop.add(Stream(out_of_it, pipes.console.stdout, way="shared", prefix=b"[rank 0] "))
    os.set_blocking(stdout, False)
    line, written, ends_s, idle = b"x" * 999 + b"\n", 0, time.monotonic() + WITHIN_S, 0
    while idle < 20 and time.monotonic() < ends_s:
        try:
            written += os.write(stdout, line)
            idle = 0
        except BlockingIOError:
            pipes.poll_loop.step(0.02)
            idle += 1
    os.close(stdout)
    arrived = b""
    while not arrived.endswith(b"\n") or arrived.count(b"\n") < written // len(line):
        assert time.monotonic() < ends_s
        pipes.poll_loop.step(0.0)
        arrived += taken(pipes.out_end)

    assert set(arrived.splitlines()) == {b"[rank 0] " + b"x" * 999}
    assert written % len(line) == 0
