"""Needs: names, ports and locks, waited for all at once (checklist 51)."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.base import ROOT
from toolkit.job.plan import Listens, Locked, Need, Resolves
from toolkit.train.supervise import waiting


def wait(needs: list[Need]) -> tuple[int, str]:
    read_end, write_end = os.pipe()
    locks = waiting.open_locks(needs, print)
    code = waiting.wait(needs, locks, write_end)
    os.close(write_end)
    for lock in locks.values():
        os.close(lock)
    with os.fdopen(read_end) as tells:
        return code, tells.read()


def test_a_name_that_resolves_and_a_port_that_listens_are_met_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        needs: list[Need] = [
            Resolves(host="localhost", within_s=30),
            Listens(host="here", address="127.0.0.1", port=port, within_s=30),
        ]

        assert wait(needs) == (0, "")


# Two threads that import a codec at once may both be told that it does not exist.
WITHOUT_IDNA = """
import sys
sys.modules["encodings.idna"] = None
from tests.train.supervise.test_waiting import wait
from toolkit.commands.check.network import resolve
from toolkit.job.plan import Resolves
from toolkit.train.peers.lookup import resolve_addresses
code, _ = wait([Resolves(host="localhost", within_s=30), Resolves(host="127.0.0.1", within_s=30)])
print(code, len(resolve(["localhost"], within_s=30)), bool(resolve_addresses("localhost", 1)))
"""


def test_names_are_looked_up_without_the_codec_idna() -> None:
    done = subprocess.run((sys.executable, "-c", WITHOUT_IDNA), cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("0 1 True\n", "")


def test_a_port_that_opens_late_is_waited_for() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # Refuses as long as it does not listen.
        timer = threading.Timer(0.5, server.listen)
        timer.start()

        assert wait([Listens(host="late", address="127.0.0.1", port=server.getsockname()[1], within_s=30)]) == (0, "")
        timer.join()


def test_what_is_missing_at_the_deadline_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: refused.
        port = taken.getsockname()[1]
        needs: list[Need] = [
            Resolves(host="localhost", within_s=2),
            Resolves(host="algo-2.invalid", within_s=2),
            Listens(host="algo-1", address="127.0.0.1", port=port, within_s=2),
        ]

        code, output = wait(needs)

    assert code == 75
    assert output == f"host algo-2.invalid to resolve\nhost algo-1 to listen on 127.0.0.1:{port}\n\n"


def test_a_lock_that_is_taken_is_waited_for_and_then_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\n"
            "file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
            "print('held', flush=True); sys.stdin.read()",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    holder.stdout.readline()
    needs = (Locked(path=path, within_s=30),)
    locks = waiting.open_locks(needs, print)
    (lock,) = locks.values()
    assert not waiting.take(lock)
    threading.Timer(0.3, holder.stdin.close).start()
    read_end, write_end = os.pipe()

    assert waiting.wait(needs, locks, write_end) == 0
    other = os.open(path, os.O_RDWR)
    assert not waiting.take(other)
    for fd in (lock, other, read_end, write_end):
        os.close(fd)
    holder.wait()
    holder.stdout.close()


def link(path: Path) -> None:
    (path.parent / "theirs").touch()
    path.symlink_to(path.parent / "theirs")


def theirs(path: Path) -> None:
    path.touch(0o666)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("lay", [link, os.mkfifo, Path.mkdir, pytest.param(theirs, marks=pytest.mark.root)])
def test_a_lock_that_others_can_hold_is_told_of_and_not_waited_for(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    if lay is theirs and os.geteuid():
        pytest.skip("needs root")
    path = tmp_path / "lock"
    lay(path)
    warned: list[str] = []

    locks = waiting.open_locks((Locked(path=path, within_s=30),), warned.append)

    assert locks == {}
    (text,) = warned
    assert text.startswith(f"{path}: expected a lock file of user {os.geteuid()}, found something else")


LOOKS_UP = """
import os, socket, subprocess, sys, time
from pathlib import Path
from toolkit.job.plan import Resolves
from toolkit.own_module import own_module
from toolkit.train.peers.lookup import Lookup
from toolkit.train.supervise import children, waiting

Lookup("no-such-host", 80)
waits_in = Path("/proc/self/task").glob
while not any("wait_for_partner" in file.read_text() for file in waits_in("*/wchan")): time.sleep(0.01)
needs = (Resolves(host="localhost", within_s=30.0),)
program = own_module(sys.executable, waiting.__name__)
pid = children.fork_call(lambda: waiting.wait_apart(needs, {}, 1, program), prctl=lambda *_: 0)
subprocess.run(("umount", "--lazy", "/etc/resolv.conf"), check=True)  # A new program reads the true file.
ends_s = time.monotonic() + 60
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    if time.monotonic() > ends_s:
        os.kill(pid, 9)
        sys.exit("the waiting process hangs")
    time.sleep(0.01)
print("resolved")
os._exit(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file")
def test_a_look_up_of_the_link_under_way_does_not_stop_the_waiting_process(tmp_path: Path) -> None:
    """glibc holds a lock while it reads resolv.conf, here a FIFO, and so for as long as nobody writes to it."""
    fifo = tmp_path / "resolv.conf"
    os.mkfifo(fifo)
    shell = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    argv = ("unshare", "--mount", "sh", "-c", shell, str(fifo), sys.executable, "-c", LOOKS_UP)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout) == (0, "resolved\n"), done.stderr
