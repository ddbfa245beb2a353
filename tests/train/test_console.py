"""A console that takes nothing, or that is gone, and several sources on one: what `train` does, and what it says."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.train.base import ROOT, TRAIN, Base
from tests.train.live import live
from toolkit.train.supervise.outlet import F_SETPIPE_SZ

DEADLINE_S = 60
# Half a minute of patience with a console that takes nothing is too long for tests.
IMPATIENT = """
from toolkit.train.supervise import outlet
outlet.STALLED_S = {patience_s}
from toolkit.cli.main import train
train()
"""
WRITES = "for n in range(20_000): print(n, 'x' * 50)\n"
WRITTEN = b"".join(b"%d %s\n" % (n, b"x" * 50) for n in range(20_000))


class Stalled:
    """`train` with stdout on a full pipe that nobody reads, stderr on the same or on another one."""

    def __init__(self, base: Base, *, both: bool, patience_s: float, **environ: str) -> None:
        self.read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, F_SETPIPE_SZ, 4096)
        os.write(write_end, b"-" * 4095 + b"\n")
        self.process = subprocess.Popen(
            (sys.executable, "-c", IMPATIENT.format(patience_s=patience_s)),
            env=base.environ(PYTHONPATH=str(ROOT), **environ),
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end if both else subprocess.PIPE,
        )
        os.close(write_end)

    def end(self) -> tuple[int, str]:
        """Return how it ended, and its stderr, "" if that is stalled too."""
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, (err or b"").decode()


@contextmanager
def stalled(base: Base, *, both: bool = False, patience_s: float = 1.0, **environ: str) -> Iterator[Stalled]:
    """Start `train`; what of it still lives at the end of the block is killed."""
    running = Stalled(base, both=both, patience_s=patience_s, **environ)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()
        os.close(running.read_end)


def wait_for(file: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the script has made *file*."""
    while not file.exists():
        assert process.poll() is None, f"ended without {file.name}"
        time.sleep(0.02)


def outcome(base: Base) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((base.output / "outcome.json").read_bytes())
    return document


def test_an_error_before_the_script_is_reported_although_nobody_reads_it(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "("}])

    with stalled(base, both=True) as running:
        assert running.end() == (78, "")

    assert "loss" in (base.output / "failure").read_text()


def test_what_the_console_did_not_take_is_told_and_is_in_the_ranks_file(base: Base) -> None:
    base.program(WRITES + "raise SystemExit(3)\n")

    with stalled(base, TOOLKIT_LOG_FILES="on") as running:
        code, log = running.end()

    assert code == 3
    assert (base.output / "data/logs/algo-1-rank-0.log").read_bytes() == WRITTEN
    message = f"the console did not take {len(WRITTEN)} bytes of stdout (nobody read it)"
    assert f"[toolkit] warning: {message}\n" in log
    assert (outcome(base)["console_lost_bytes"], outcome(base)["notes"][-1]) == (len(WRITTEN), message)
    assert (
        f"{len(WRITTEN)} bytes of this host's output did not reach the console" in (base.output / "failure").read_text()
    )


def test_a_stop_does_not_wait_for_a_stalled_console_which_is_told_what_is_missing_when_it_is_read(base: Base) -> None:
    base.program(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    for n in range(100_000): print(n, 'x' * 50)\n"
        "    open('saved', 'w')\n"
        "    while not os.path.exists('read'): time.sleep(0.02)\n"
        "    print('the last line')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open('ready', 'w')\n"
        "while True: time.sleep(0.05)\n"
    )

    with stalled(base, both=True) as running:
        wait_for(base.code / "ready", running.process)
        running.process.terminate()
        wait_for(base.code / "saved", running.process)
        output = os.read(running.read_end, 4096)
        (base.code / "read").touch()
        while piece := os.read(running.read_end, 1 << 16):
            output += piece
        running.end()

    lost_bytes = outcome(base)["console_lost_bytes"]
    assert lost_bytes > 0
    assert f"[toolkit] warning: {lost_bytes} bytes are missing here: nobody read it\n".encode() in output
    assert b"\nthe last line\n" in output
    assert b"[toolkit] Reporting training" in output


def test_a_stop_is_reported_at_once_where_the_console_has_just_begun_to_stall(base: Base) -> None:
    """The script does not wait for the console; `train` itself would, for half a minute, before it reports."""
    ready = base.folder / "ready"
    base.program(
        f"for _ in range(2000): print('y' * 99, flush=True)\nopen({str(ready)!r}, 'w').close()\n"
        "import time; time.sleep(600)\n"
    )

    with stalled(base, both=True, patience_s=600.0) as running:
        ends_s = time.monotonic() + DEADLINE_S
        while not ready.exists():
            assert time.monotonic() < ends_s
            time.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        status, _ = running.end()

    assert status == 143
    assert json.loads((base.output / "outcome.json").read_bytes())["console_lost_bytes"] > 0


def test_ranks_that_wait_for_a_console_that_nobody_reads_are_no_hang(base: Base) -> None:
    base.program("for n in range(100_000): print(n, 'x' * 50)\n")

    with stalled(base, TOOLKIT_STALL_S="1") as running:
        code, log = running.end()

    assert code == 0
    assert "the console has taken nothing for" in log
    assert outcome(base)["console_lost_bytes"] == sum(len(f"{n} ") + 51 for n in range(100_000))


def test_a_reader_that_has_gone_is_told_with_the_number_of_bytes(base: Base) -> None:
    base.program("import os\nopen('ready', 'w')\nwhile not os.path.exists('gone'): pass\n" + WRITES)

    with live(base) as running:
        wait_for(base.code / "ready", running.process)
        running.close_stdout()
        (base.code / "gone").touch()
        done = running.end()

    assert done.status == 0
    assert f"the console did not take {len(WRITTEN)} bytes of stdout (Broken pipe)" in done.log
    assert done.outcome["console_lost_bytes"] == len(WRITTEN)


def test_a_full_disk_behind_stdout_is_told_with_the_number_of_bytes(base: Base) -> None:
    base.program(WRITES)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            TRAIN, env=base.environ(), stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S
        )

    assert done.returncode == 0
    assert f"the console did not take {len(WRITTEN)} bytes of stdout (No space left on device)".encode() in done.stderr


@pytest.mark.parametrize("entry", ["start", "main"])
@pytest.mark.parametrize(("fd", "name"), [(1, "stdout"), (2, "stderr")])
def test_a_stream_that_was_closed_is_told_with_the_number_of_bytes(base: Base, fd: int, name: str, entry: str) -> None:
    base.program(f"import sys\nsys.std{name[3:]}.write('x' * 99 + chr(10))\n")
    command = (sys.executable, "-c", f"from toolkit.cli.{entry} import train; train()")

    done = base.train(command=command, before=lambda: os.close(fd))

    assert done.status == 0, done
    (note,) = done.outcome["notes"]
    assert note.endswith(f"bytes of {name} (it was closed when train was started)")
    assert done.outcome["console_lost_bytes"] == 100 if fd == 1 else done.outcome["console_lost_bytes"] > 100


def test_a_terminal_that_is_stopped_for_a_while_loses_nothing(base: Base) -> None:
    base.program("open('ready', 'w')\n" + WRITES)
    main_end, theirs = pty.openpty()
    termios.tcflow(theirs, termios.TCOOFF)  # What Ctrl-S does.
    process = subprocess.Popen(TRAIN, env=base.environ(), stdin=theirs, stdout=theirs, stderr=theirs)
    wait_for(base.code / "ready", process)
    termios.tcflow(theirs, termios.TCOON)
    os.close(theirs)
    output = b""
    while piece := _read_terminal(main_end):
        output += piece
    os.close(main_end)

    assert process.wait(DEADLINE_S) == 0
    assert output.replace(b"\r\n", b"\n").count(b"x" * 50 + b"\n") == 20_000
    assert outcome(base)["console_lost_bytes"] == 0


def test_a_line_that_comes_in_halves_stays_whole_beside_other_lines(base: Base) -> None:
    base.program(
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        "    os.write(1, b'words\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.write(1, b'half a ')\n"
        "time.sleep(0.4)\n"  # Long enough for the half to be shown.
        "os.write(2, b'a warning\\n')\n"
        "os.write(1, b'line\\nlast ')\n"
        "open('ready', 'w')\n"
        "while True: time.sleep(0.05)\n"
    )
    process = subprocess.Popen(
        TRAIN, env=base.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_for(base.code / "ready", process)
    time.sleep(0.4)
    process.terminate()
    output, _ = process.communicate(timeout=DEADLINE_S)

    lines = output.splitlines()
    assert {b"half a line", b"a warning", b"last words"} < set(lines)
    assert any(line.startswith(b"[toolkit] SIGTERM received") for line in lines)


def _read_terminal(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: the last one to hold the other side has gone.
        return b""
