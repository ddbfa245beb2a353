"""The start-up hook in ranks: never noticed, gives way to the next, cures the abort of torch with gloo at exit."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.conftest import base  # noqa: F401

HOOK = Path(__file__).parents[3] / "toolkit/rank/hook/site"


def python(*arguments: str, path: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_next_sitecustomize_runs_as_if_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nvalue = 7\nprint('theirs', __name__)\n")

    done = python("-c", "import sitecustomize; print(sitecustomize.value)", path=f"{HOOK}:{tmp_path}", cwd=tmp_path)

    assert done.stdout.splitlines() == ["theirs sitecustomize", "7"]
    assert done.stderr == ""


def test_an_error_in_the_next_one_is_what_python_says_without_the_hook(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")

    with_hook = python("-c", "print('on')", path=f"{HOOK}:{tmp_path}", cwd=tmp_path)
    without = python("-c", "print('on')", path=str(tmp_path), cwd=tmp_path)

    assert with_hook.stdout == without.stdout == "on\n"
    assert with_hook.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]


def test_its_folder_is_not_on_the_path_of_the_script(tmp_path: Path) -> None:
    with_hook = python("-c", "import sys; print(sys.path)", path=f"{HOOK}:{tmp_path}", cwd=tmp_path)
    without = python("-c", "import sys; print(sys.path)", path=str(tmp_path), cwd=tmp_path)

    assert with_hook.stdout == without.stdout


def test_an_isolated_python_never_sees_it(tmp_path: Path) -> None:
    done = python("-I", "-v", "-c", "pass", path=str(HOOK), cwd=tmp_path)

    assert str(HOOK) not in done.stderr


def test_it_runs_on_every_python_installed_here(tmp_path: Path) -> None:
    pythons = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    if not pythons:
        pytest.skip("no other Python is installed here")

    for interpreter in pythons:
        done = subprocess.run(
            [interpreter, "-c", "print('on')"],
            env={"PYTHONPATH": str(HOOK)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("on\n", ""), interpreter


def test_it_imports_next_to_nothing(base: Base) -> None:  # noqa: F811
    base.program("import sys\nprint(*sorted(sys.modules))\n")

    with_hook, without = ({*base.train(TOOLKIT_RANK_HOOK=hook).stdout.split()} for hook in ("on", "off"))

    assert with_hook - without <= {b"sitecustomize", b"atexit", b"faulthandler"}


@pytest.mark.parametrize(("hook", "expected"), [("on", b"True\n"), ("off", b"False\n")])
def test_it_is_there_unless_switched_off(base: Base, hook: str, expected: bytes) -> None:  # noqa: F811
    base.program("import sys\nprint('toolkit' in getattr(sys.modules.get('sitecustomize'), '__file__', ''))\n")

    assert base.train(TOOLKIT_RANK_HOOK=hook).stdout == expected


def test_a_true_abort_is_still_a_failure(base: Base) -> None:  # noqa: F811
    base.program("import os\nos.abort()\n")

    done = base.train()

    assert done.status == 134
    assert done.failure is not None
    assert "SIGABRT" in done.failure


@pytest.mark.torch
@pytest.mark.skipif(not any((Path(f) / "torch").is_dir() for f in sys.path), reason="torch is not installed")
@pytest.mark.parametrize("pairs", [1, pytest.param(20, marks=pytest.mark.long)])
def test_ranks_that_end_with_gloo_alive_succeed(base: Base, pairs: int) -> None:  # noqa: F811
    # A DDP object that still holds the process group at exit: without the hook one rank in four to twelve aborts.
    base.program(
        "import subprocess, sys\n"
        f"for pair in range({pairs}):\n"
        "    ranks = [subprocess.Popen([sys.executable, 'one.py', str(rank), f'store-{pair}']) for rank in (0, 1)]\n"
        "    codes = [rank.wait() for rank in ranks]\n"
        "    assert codes == [0, 0], (pair, codes)\n"
        "print('all', pair + 1)\n"
    )
    base.program(
        "import sys, torch, torch.distributed as dist\n"
        "store = dist.FileStore(sys.argv[2], 2)\n"
        "dist.init_process_group('gloo', store=store, rank=int(sys.argv[1]), world_size=2)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "model(torch.ones(2, 4)).sum().backward()\n",
        "one.py",
    )

    done = base.train(deadline_s=600, OMP_NUM_THREADS="1")

    assert done.stdout == f"all {pairs}\n".encode(), done
    assert done.status == 0


@pytest.mark.parametrize("first", ["", "import socket; "])
def test_a_rank_under_mpirun_knows_its_host_by_the_name_it_has_in_the_job(tmp_path: Path, first: str) -> None:
    code = f"{first}import socket; from socket import gethostname; print(socket.gethostname(), gethostname())"

    def print_names(**more: str) -> str:
        environ = {"PYTHONPATH": str(HOOK), "PATH": "/usr/bin:/bin", **more}
        argv = [sys.executable, "-c", code]
        return subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout

    assert print_names(TOOLKIT_HOST_NAME="algo-2") == "algo-2 algo-2\n"
    assert print_names() == f"{socket.gethostname()} {socket.gethostname()}\n"
