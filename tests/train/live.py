"""A `train` under way: what it prints as it comes, signals to it, and how it ended."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.train.base import TRAIN, Base, Done

PROGRAMS = Path(__file__).parents[1] / "programs"
DEADLINE_S = 60.0


class Live:
    """One running `train`; both its streams are read while waiting, each into its own bytes."""

    def __init__(self, base: Base, process: "subprocess.Popen[bytes]") -> None:
        self._base = base
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.out = b""
        self.err = b""
        self._selector = selectors.DefaultSelector()
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, text: bytes, *, count: int = 1, deadline_s: float = DEADLINE_S) -> None:
        """Read until *text* has appeared *count* times in either stream."""
        ends_s = time.monotonic() + deadline_s
        while (self.out + self.err).count(text) < count:
            assert time.monotonic() < ends_s, f"no {text!r} in {deadline_s} s; so far {self.out!r} and {self.err!r}"
            assert self._read(0.5) or self.process.poll() is None, f"ended without {text!r}: {self.out!r} {self.err!r}"

    def close_stdout(self) -> None:
        """Leave, as a reader that has seen enough."""
        assert self.process.stdout is not None
        self._selector.unregister(self.process.stdout)
        self.process.stdout.close()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self, *, deadline_s: float = DEADLINE_S) -> Done:
        """Read to the end and return how it ended."""
        ends_s = time.monotonic() + deadline_s
        while self._selector.get_map():
            assert time.monotonic() < ends_s, f"still running after {deadline_s} s: {self.out!r} {self.err!r}"
            self._read(0.5)
        code = self.process.wait(max(ends_s - time.monotonic(), 1))
        return Done(self._base, code if code >= 0 else 128 - code, self.out, self.err)

    def _read(self, timeout_s: float) -> bool:
        matched = False
        for key, _ in self._selector.select(timeout_s):
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                self._selector.unregister(key.fileobj)
            setattr(self, key.data, getattr(self, key.data) + piece)
            matched = True
        return matched


@contextmanager
def live(base: Base, *, command: Sequence[str] = TRAIN, **more: str) -> Iterator[Live]:
    """Start `train` on *base*; what of it still lives at the end of the block is killed."""
    process = subprocess.Popen(
        command,
        env=base.environ(**more),
        cwd=base.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield Live(base, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def alive(pid: int) -> bool:
    """True if a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int, *, deadline_s: float = DEADLINE_S) -> bool:
    """Wait for a process to end; False if it still lives at the deadline."""
    ends_s = time.monotonic() + deadline_s
    while alive(pid):
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.01)
    return True


def program(base: Base, name: str, arguments: str = "") -> None:
    """Make *base*'s entry point run tests/programs/NAME with *arguments* (as Python source of a list)."""
    base.program(
        f"import runpy, sys\nsys.argv = ['{name}', *{arguments or '[]'}]\n"
        f"runpy.run_path({str(PROGRAMS / name)!r}, run_name='__main__')\n"
    )
