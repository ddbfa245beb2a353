import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.job.command import command, is_module
from toolkit.job.job import Script

ARGUMENTS = ("--name", "a b", "--text", "$(touch never); 'quoted' \"twice\"\n", "-x", "")


def script(kind: str, entry: str, folder: Path = Path("/opt/ml/code"), through: tuple[str, ...] = ()) -> Script:
    return Script(kind=kind, entry=entry, folder=folder, through=through)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (script("program", "src/train.py"), ("py", "src/train.py", "-x", "1")),
        (script("module", "pkg.mod"), ("py", "-m", "pkg.mod", "-x", "1")),
        (script("package", "pkg.mod"), ("py", "-m", "pkg.mod", "-x", "1")),
        (script("package", "src/train.py"), ("py", "src/train.py", "-x", "1")),
        (script("command", "bin/run"), ("./bin/run", "-x", "1")),
        (script("command", "run.sh", through=("/bin/sh",)), ("/bin/sh", "./run.sh", "-x", "1")),
    ],
)
def test_each_kind_has_its_tokens(values: Script, expected: tuple[str, ...]) -> None:
    assert command(values, "py", ("-x", "1")) == expected


@pytest.mark.parametrize(
    ("kind", "entry", "is_one"),
    [("module", "train", True), ("package", "a.b", True), ("package", "a/b.py", False), ("program", "a.py", False)],
)
def test_launchers_can_tell_modules_from_files(kind: str, entry: str, is_one: bool) -> None:
    assert is_module(script(kind, entry)) is is_one


def run(values: Script, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    argv, environ = command(values, sys.executable, arguments), {**os.environ, "PYTHONPATH": str(values.folder)}
    return subprocess.run(argv, cwd=values.folder, env=environ, capture_output=True, check=False)


@pytest.mark.parametrize("kind", ["program", "module", "command", "command through sh"])
def test_every_argument_arrives_as_one_token_and_meets_no_shell(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.stdout.write('\\0'.join([*sys.argv[1:], '']))")
    (tmp_path / "run.sh").write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    (tmp_path / "run.sh").chmod(0o755)
    scripts = {
        "program": script("program", "train.py", tmp_path),
        "module": script("module", "train", tmp_path),
        "command": script("command", "run.sh", tmp_path),
        "command through sh": script("command", "run.sh", tmp_path, ("/bin/sh",)),
    }[kind]

    done = run(scripts, ARGUMENTS)

    assert tuple(done.stdout.decode().split("\0")[:-1]) == ARGUMENTS
    assert not (tmp_path / "never").exists()


def test_a_plugin_s_function_is_called_without_arguments(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "plug.py").write_text("import sys\ndef main(): print(sys.argv[1:]); sys.exit(7)\n")

    done = run(script("plugin", "pkg.plug:main", tmp_path), ("--never", "given"))

    assert (done.returncode, done.stdout) == (7, b"[]\n")


def test_a_plugin_that_is_missing_says_so_in_a_traceback(tmp_path: Path) -> None:
    done = run(script("plugin", "absent.plug:main", tmp_path))

    assert done.returncode == 1
    assert done.stderr.endswith(b"ModuleNotFoundError: No module named 'absent'\n")
