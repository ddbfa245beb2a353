"""tests/forking.py: a fork is what `python PROGRAM` is."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking import TORCH, Fork, _Server
from tests.started import ROOT, ended, ranks

MODULES = ("decimal",)
SEES = """
import atexit, json, os, sys
import decimal
atexit.register(print, "at the end")
main = sys.modules["__main__"]
print(json.dumps([
    sys.argv, sys.orig_argv[1:], sys.path, dict(os.environ), os.getcwd(), main.__file__, __name__, main.SEEN,
    decimal.__spec__.name, type(decimal.__loader__).__name__, str(decimal.Decimal("1.5")), sys.warnoptions,
]))
"""
WATCHES = """
import sys
from toolkit.rank.mesh.import_hooks import watch
def load(loader, module):
    loader.exec_module(module)
    sys.modules["__main__"].SEEN = module.__name__
watch("decimal", load)
"""


def test_a_program_sees_in_a_fork_what_it_sees_in_a_process_that_starts(tmp_path: Path) -> None:
    """Also its sitecustomize, which hears of the import of what is imported already."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WATCHES)
    (tmp_path / "program.py").write_text(SEES)
    environ = {"LANG": "C.UTF-8", "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "RANK": "1"}
    argv = [sys.executable, "program.py", "one", "two words"]
    started = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    fork = Fork(Path(argv[1]), *argv[2:], environ=environ, modules=MODULES, folder=tmp_path)
    streams = fork.communicate(300)

    assert (fork.returncode, *streams) == (started.returncode, started.stdout, started.stderr)
    assert json.loads(started.stdout.splitlines()[0])[7] == "decimal"
    assert started.stdout.endswith("\nat the end\n")


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no more')", 1, "no more\n"),
        ("raise ValueError('a shard')", 1, "ValueError: a shard\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_a_fork_ends_as_its_program_does(tmp_path: Path, code: str, status: int, message: str) -> None:
    (tmp_path / "program.py").write_text(code)

    fork = Fork(tmp_path / "program.py", environ={}, modules=MODULES)
    _, stderr = fork.communicate(300)

    assert fork.returncode == status
    assert stderr.endswith(message)


def test_a_fork_that_is_killed_has_ended(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('begun', flush=True)\nimport time\ntime.sleep(600)\n")
    fork = Fork(tmp_path / "program.py", environ={}, modules=MODULES)

    fork.kill()

    assert fork.wait(300) == -signal.SIGKILL
    fork.communicate()


def test_a_server_outlives_who_did_not_wait_for_its_fork(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('on')\n")
    request = {"argv": ["program.py"], "environ": {}, "folder": str(tmp_path), "warnings": "default"}
    server = _Server(sys.executable, MODULES)
    with (tmp_path / "said").open("wb+") as file:
        parent_end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent_end.close()
        with theirs:
            fds = [file.fileno(), file.fileno(), theirs.fileno()]
            socket.send_fds(server._socket, [json.dumps(request).encode()], fds)

        _, end = server.fork(request, file.fileno(), file.fileno())

        with end:
            assert end.recv(32) == b"0"
    server.close()


def test_an_error_in_sitecustomize_is_said_as_by_a_process_that_starts(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import json\njson.SEEN = 'site'\nimport no_such_module\n")
    (tmp_path / "program.py").write_text("import json\nprint(json.SEEN)\n")
    environ = {"PYTHONPATH": str(tmp_path), "LANG": "C.UTF-8"}
    argv = [sys.executable, str(tmp_path / "program.py")]
    started = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300)

    fork = Fork(tmp_path / "program.py", environ=environ, modules=(*MODULES, "site"))
    streams = fork.communicate(300)

    assert (fork.returncode, *streams) == (started.returncode, started.stdout, started.stderr)
    assert "no_such_module" in started.stderr


@pytest.mark.parametrize(
    ("modules", "drawn"),
    [
        (("numpy.random",), "numpy.random.randint(2**62)"),
        pytest.param(TORCH, "torch.initial_seed()", marks=pytest.mark.torch),
    ],
    ids=["numpy", "torch"],
)
def test_forks_draw_numbers_of_their_own_as_processes_do(tmp_path: Path, modules: tuple[str, ...], drawn: str) -> None:
    """Else no test of ranks would see that they begin with different values."""
    pytest.importorskip(modules[0])
    (tmp_path / "program.py").write_text(f"import {modules[0]}\nprint({drawn})\n")

    forks = [Fork(tmp_path / "program.py", environ={}, modules=modules) for _ in range(2)]

    first, second = ended(forks)
    assert first != second


def test_neighbouring_ranks_order_sets_in_their_own_ways(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(hash('a name'))\n")

    outputs = [out for out, _ in ended(ranks(tmp_path / "program.py", environ={}, size=3, modules=MODULES))]

    assert outputs[0] != outputs[1] != outputs[2]
