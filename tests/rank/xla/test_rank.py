"""The program that a rank begins with, without torch_xla: which part of a script runs, and what the script sees."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.rank.xla.rank import takes_an_index
from toolkit.train.launchers.pytorchxla import RANK

ROOT = Path(__file__).parents[3]
MAIN = 'if __name__ == "__main__":\n    print("main")\n'
SEES = 'import json, sys\nprint(json.dumps([__name__, sys.argv, sys.path[0], sys.modules["__main__"].__name__]))\n'


def ran(folder: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run the rank program with *words* in *folder*."""
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}
    argv = [sys.executable, str(RANK), *words]
    return subprocess.run(argv, cwd=folder, env={**variables, **environ}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("def _mp_fn(index): pass", True),
        ("def _mp_fn(rank, flags=None): pass", True),
        ("def _mp_fn(*args): pass", True),
        ("def _mp_fn(index, /, *, verbose=True): pass", True),
        ("def _mp_fn(index, flags): pass", False),
        ("def _mp_fn(): pass", False),
        ("def _mp_fn(index, *, flags): pass", False),
        ("if True:\n    def _mp_fn(index): pass", False),
        ("class A:\n    def _mp_fn(index): pass", False),
        ("def main(index): pass", False),
        ("def _mp_fn(index:", False),
        ("", False),
    ],
)
def test_a_function_counts_that_an_index_alone_can_call(source: str, taken: bool) -> None:
    assert takes_an_index(source.encode()) is taken


def test_the_function_is_called_with_the_ranks_ordinal_and_the_main_block_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"def _mp_fn(index):\n    print(index)\n{MAIN}")

    done = ran(tmp_path, "train.py", RANK="3", WORLD_SIZE="4")

    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_any_other_script_runs_as_if_started_by_itself(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(SEES)
    (tmp_path / "src/torch_xla_is_not_imported.py").write_text("")

    done = ran(tmp_path, "src/train.py", "--lr", "0.1")

    assert json.loads(done.stdout) == [
        "__main__",
        ["src/train.py", "--lr", "0.1"],
        str(tmp_path / "src"),
        "__main__",
    ]


@pytest.mark.parametrize("name", ["pkg.main", "pkg"])
def test_a_module_is_imported_or_run_from_the_current_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/main.py").write_text("def _mp_fn(index):\n    print('called', index, __name__)\n")
    (tmp_path / "pkg/__main__.py").write_text(SEES)

    done = ran(tmp_path, "-m", name, "x", RANK="1")

    if name == "pkg.main":
        assert done.stdout == "called 1 pkg.main\n"
    else:
        document = json.loads(done.stdout)
        assert (document[0], document[1][1:], document[2]) == ("__main__", ["x"], str(tmp_path))


def test_what_the_function_defines_can_be_pickled_by_the_scripts_own_name(tmp_path: Path) -> None:
    call = "def _mp_fn(index):\n    print(pickle.loads(pickle.dumps(Batch())).__module__)\n"
    (tmp_path / "train.py").write_text(f"import pickle\nclass Batch: pass\n{call}")

    assert ran(tmp_path, "train.py").stdout == "train\n"


def test_a_scripts_error_is_its_own_and_so_is_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def _mp_fn(index):\n    raise SystemExit(7)\n")
    (tmp_path / "broken.py").write_text("def _mp_fn(index:\n")

    assert ran(tmp_path, "train.py").returncode == 7
    assert "SyntaxError" in ran(tmp_path, "broken.py").stderr
    assert "No module named nowhere" in ran(tmp_path, "-m", "nowhere").stderr


LIBRARY = """\
import sys
from importlib.machinery import SourceFileLoader
assert type(__spec__.loader) is SourceFileLoader, __spec__.loader
{body}
"""
ASKS = """\
import importlib.util
assert importlib.util.find_spec("torch_xla") is not None
import torch_xla
assert type(torch_xla.__spec__.loader).__name__ == type(torch_xla.__loader__).__name__ == "SourceFileLoader"
print("there")
"""


def with_library(folder: Path, body: str) -> "subprocess.CompletedProcess[str]":
    """Run a rank of two whose torch_xla is a module of *body*."""
    (folder / "torch_xla.py").write_text(LIBRARY.format(body=body))
    (folder / "train.py").write_text(ASKS)
    return ran(folder, "train.py", RANK="0", WORLD_SIZE="2", TOOLKIT_XLA="on")


def test_a_torch_xla_that_is_not_xlas_is_left_alone(tmp_path: Path) -> None:
    """TOOLKIT_COMPAT's, for one. That a library asks for it first, without importing it, changes nothing."""
    assert with_library(tmp_path, "").stdout == "there\n"


def test_a_torch_xla_that_does_not_load_says_what_fits(tmp_path: Path) -> None:
    done = with_library(tmp_path, 'raise ImportError("undefined symbol: _ZN5torch8autograd10deleteNodeEPNS0_4NodeE")')

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: torch_xla (not installed) does not load with torch ")
    assert "deleteNode" in last
    assert "of one release" in last


def test_the_rank_hook_waits_for_torch_xla_in_what_a_command_starts(tmp_path: Path) -> None:
    (tmp_path / "torch_xla.py").write_text('raise ImportError("no")')
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'toolkit/rank/hook/site'}:{tmp_path}"}
    argv = [sys.executable, "-c", "import torch_xla"]

    alone = subprocess.run(argv, env={**environ, "WORLD_SIZE": "1"}, capture_output=True, text=True)
    of_two = subprocess.run(argv, env={**environ, "WORLD_SIZE": "2"}, capture_output=True, text=True)

    assert "of one release" not in alone.stderr
    assert "of one release" in of_two.stderr
