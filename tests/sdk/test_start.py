"""The program that a job of SDK v3 starts as PID 1: which toolkit runs, and how it ends where none can."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sdk import replay
from tests.train.base import Base, Done
from toolkit import __version__

START = replay.DISTRIBUTION / "toolkit_sagemaker/driver/toolkit_start.py"
NAMES = "import toolkit; print('scripts import', toolkit.__file__)"


@pytest.fixture
def driver(distribution: Path, tmp_path: Path) -> Path:
    """The folder that the SDK sends."""
    return Path(shutil.copytree(distribution / "toolkit_sagemaker/driver", tmp_path / "driver"))


@pytest.fixture
def base(tmp_path: Path) -> Base:
    base = Base(tmp_path / "base")
    base.hyperparameters()
    base.program(NAMES)
    (tmp_path / "tmp").mkdir()
    return base


def start(base: Base, driver: Path, image: Path, patch: str = "", **environ: str) -> Done:
    """Run the start in *image*; *patch* is what makes its interpreter another one."""
    run = f"import os, sys, runpy; {patch}\nrunpy.run_path({str(driver / START.name)!r}, run_name='__main__')"
    command = [str(image / "python3"), "-c", run]
    return base.train({"TMPDIR": str(driver.parent / "tmp"), **environ}, command=command)


def package(folder: Path, version: str, name: str = "exit_codes.py") -> Path:
    """Make a package `toolkit` in *folder* that stands for one of the image."""
    (folder / "toolkit/cli").mkdir(parents=True)
    (folder / "toolkit" / name).write_text("")
    (folder / "toolkit/__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "toolkit/cli/__init__.py").write_text("")
    (folder / "toolkit/cli/start.py").write_text("def train(): print('the train of the image')\n")
    return folder


def test_its_language_is_that_of_old_interpreters() -> None:
    ast.parse(START.read_text(), feature_version=(3, 4))


def test_the_toolkit_runs_that_the_job_has_brought_and_a_second_start_finds_it(
    base: Base, driver: Path, image: Path
) -> None:
    done = start(base, driver, image)

    assert done.status == 0, done.log
    folder = next((driver.parent / "tmp").glob(".toolkit-*"))
    assert f"scripts import {folder}/toolkit/__init__.py" in done.log
    assert not (folder / "toolkit/docs").exists()
    assert len([path for path in folder.rglob("*.py") if "/toolkit/" in str(path)]) < 120  # Each costs time.
    for pack in (driver / "packs").glob("*.pack"):
        pack.unlink()
    assert start(base, driver, image).status == 0


def test_the_image_s_toolkit_runs_where_it_is_newer(base: Base, driver: Path, image: Path, tmp_path: Path) -> None:
    newer = package(tmp_path / "newer", "9.0.0")
    fake = f"import site; site.getsitepackages = lambda: [{str(tmp_path / 'site')!r}]"
    (tmp_path / "site/msgspec").mkdir(parents=True)

    done = start(base, driver, image, fake, PYTHONPATH=str(newer))

    assert "the train of the image" in done.log
    assert done.log.count("the image's container-training-toolkit 9.0.0 runs: the job has brought ") == 1


def test_the_job_s_runs_where_the_image_s_is_older(base: Base, driver: Path, image: Path, tmp_path: Path) -> None:
    older = package(tmp_path / "older", "0.0.9")

    done = start(base, driver, image, PYTHONPATH=str(older))

    assert done.status == 0, done.log
    assert "the train of the image" not in done.log
    assert done.log.count("which the job has brought: the image has 0.0.9") == 1


def test_scripts_keep_a_package_of_the_same_name(base: Base, driver: Path, image: Path, tmp_path: Path) -> None:
    other = package(tmp_path / "other", "5", name="another.py")

    done = start(base, driver, image, PYTHONPATH=str(other))

    assert done.status == 0, done.log
    assert f"scripts import {other}/toolkit/__init__.py" in done.log


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("sys.version_info = (3, 8, 10)", "expected Python 3.10 or newer as the image's python3, found 3.8 ("),
        ("sys.implementation._multiarch = 'x86_64-linux-musl'", "with glibc, for which the job has brought msgspec"),
        ("sys.abiflags = 't'", "found cpython 3.11t (".replace("3.11", "{}.{}".format(*sys.version_info))),
        ("os.uname = lambda: ('Linux', '', '', '', 'riscv64')", "Install msgspec in the image"),
    ],
)
def test_an_interpreter_that_nothing_fits_ends_with_one_line_and_78(
    base: Base, driver: Path, image: Path, patch: str, words: str
) -> None:
    done = start(base, driver, image, patch)

    assert done.status == 78
    assert (words in done.log, done.log.count("\n")) == (True, 1), done.log
    assert (done.failure or "").startswith("ClientError:\nExitCode 78\nErrorMessage")
    assert words in (done.failure or "")


def test_a_damaged_pack_ends_with_78_before_any_of_it_runs(base: Base, driver: Path, image: Path) -> None:
    pack = driver / f"packs/toolkit-{__version__}.pack"
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")

    done = start(base, driver, image)

    assert done.status == 78
    assert f"{pack}: expected the SHA-256 " in done.log


def test_nothing_is_compiled_that_came_compiled(base: Base, driver: Path, image: Path) -> None:
    pack = f"toolkit-{__version__}-cp{sys.version_info[0]}{sys.version_info[1]}.pack"

    assert (driver / "packs" / pack).exists()
    done = start(base, driver, image, TOOLKIT_MONITOR="on")
    assert done.status == 0, done.log
    folder = next((driver.parent / "tmp").glob(".toolkit-*"))
    sent = {path for path in folder.rglob("*.pyc") if b"\x01" in path.read_bytes()[4:5]}  # By hash, not by time.
    assert {path.name.partition(".")[0] for path in sent} >= {"__init__", "carried_modules", "sitecustomize", "_utils"}
    assert set(folder.rglob("*.pyc")) - sent == set()


@pytest.fixture
def carried(base: Base, driver: Path, image: Path) -> Any:
    """Runs a program of the image's Python with the toolkit that a job has brought."""
    assert start(base, driver, image).status == 0
    folder = next((driver.parent / "tmp").glob(".toolkit-*"))

    def run(program: str, path: str = str(folder)) -> str:
        environ = {"PATH": str(image), "PYTHONPATH": path, "FOLDER": str(folder)}
        words = [str(image / "python3"), "-c", program]
        done = subprocess.run(words, env=environ, cwd=base.folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    return run


def test_every_module_can_be_imported_and_names_the_file_that_it_would_be(carried: Any) -> None:
    names = [
        ".".join(path.relative_to(replay.ROOT).with_suffix("").parts)
        for folder in ("job", "masking", "metrics", "storage", "rank/mesh", "rank/compiler", "rank/profiler")
        for path in sorted((replay.ROOT / "toolkit" / folder).glob("*.py"))
        if path.stem not in ("__main__", "__init__")
    ]
    program = f"import importlib, os\nfor name in {names!r}: importlib.import_module(name)"
    program += "\nimport toolkit.job.job as job; print(job.__file__ == os.environ['FOLDER'] + '/toolkit/job/job.py')"

    assert carried(program) == "True\n"
    assert len(names) > 80


def test_a_module_that_is_not_there_is_an_import_error(carried: Any) -> None:
    assert "ModuleNotFoundError: No module named 'toolkit.nothing'" in carried("import toolkit.nothing")


def test_a_traceback_shows_the_lines_of_modules_without_files(carried: Any) -> None:
    log = carried(
        "import traceback; from toolkit.job.arguments import arguments\n"
        "try: arguments(1, 2)\nexcept KeyError: traceback.print_exc()"
    )

    assert "/toolkit/job/arguments.py" in log
    line = next(line for line in log.splitlines() if "/toolkit/job/arguments.py" in line)
    assert (
        log.splitlines()[log.splitlines().index(line) + 1].strip()
        in (replay.ROOT / "toolkit/job/arguments.py").read_text()
    )


def test_the_hook_finds_its_modules_beside_a_user_s_package_of_the_same_name(carried: Any, tmp_path: Path) -> None:
    other = package(tmp_path / "other", "5", name="another.py")
    program = (
        "import os, sys, toolkit, importlib.util as u; assert 'other' in toolkit.__file__\n"
        "s = u.spec_from_file_location('hooks', os.environ['FOLDER'] + '/toolkit/rank/mesh/import_hooks.py')\n"
        "m = u.module_from_spec(s); s.loader.exec_module(m); import importlib\n"
        "print(importlib.import_module(m.package() + '.rank.frameworks').__file__.replace(os.environ['FOLDER'], ''))"
    )

    assert carried(program, path=str(other)) == "/toolkit/rank/frameworks/__init__.py\n"


def test_another_python_than_that_of_train_compiles_the_sources(carried: Any) -> None:
    program = (
        "import _frozen_importlib_external as f; f.MAGIC_NUMBER = b'none'; import toolkit.job.job; print('imported')"
    )

    assert carried(program) == "imported\n"


def test_a_full_disk_ends_with_75_and_what_did_not_fit_is_removed(base: Base, driver: Path, image: Path) -> None:
    full = "import errno\ndef full(*_):\n raise OSError(errno.ENOSPC, 'No space left on device')\nos.write = full"

    done = start(base, driver, image, full)

    assert done.status == 75
    assert f"{driver.parent / 'tmp'} (No space left on device), /tmp (No space left on device)" in done.log
    assert list((driver.parent / "tmp").iterdir()) == []


def test_a_folder_from_which_no_library_can_be_loaded_is_not_taken(base: Base, driver: Path, image: Path) -> None:
    noexec = "import types; os.statvfs = lambda _: types.SimpleNamespace(f_flag=os.ST_NOEXEC)"

    done = start(base, driver, image, noexec)

    assert done.status == 75
    assert f"{driver.parent / 'tmp'} (mounted with noexec), /tmp (mounted with noexec)" in done.log


def test_a_relative_tmpdir_is_that_of_the_start_wherever_the_script_runs(base: Base, driver: Path, image: Path) -> None:
    done = start(base, driver, image, f"os.chdir({str(driver.parent)!r})", TMPDIR="tmp")

    assert done.status == 0, done.log
    folder = next((driver.parent / "tmp").glob(".toolkit-*"))
    assert f"scripts import {folder}/toolkit/__init__.py" in done.log


def test_of_hosts_that_share_tmpdir_the_slower_takes_what_the_faster_has_unpacked(
    base: Base, driver: Path, image: Path
) -> None:
    # The faster one does it all while the slower one is about to rename its own.
    faster = (
        "import subprocess; rename = os.rename\ndef slow(old, new):\n"
        f" os.rename = rename; subprocess.run([sys.executable, {str(driver / START.name)!r}], check=True)\n"
        " rename(old, new)\nos.rename = slow"
    )

    done = start(base, driver, image, faster)

    assert done.status == 0, done.log
    assert done.log.count(f"scripts import {driver.parent / 'tmp'}/.toolkit-") == 2
    assert len(list((driver.parent / "tmp").glob(".toolkit-*"))) == 1


def test_a_pack_that_did_not_arrive_is_named(base: Base, driver: Path, image: Path) -> None:
    pack = driver / f"packs/toolkit-{__version__}.pack"
    pack.unlink()

    done = start(base, driver, image)

    assert done.status == 78
    assert f"{pack}: cannot be read (No such file or directory). Send the job again" in done.log


def test_every_interpreter_that_is_promised_has_its_pack(driver: Path) -> None:
    names = [line.split()[1] for line in (driver / "packs/SHA256SUMS").read_text().splitlines()]
    promised = [f"-cp3{minor}-{machine}.pack" for minor in range(10, 15) for machine in ("x86_64", "aarch64")]

    assert sorted(names) == sorted(path.name for path in (driver / "packs").glob("*.pack"))
    for ending in promised:
        assert len([name for name in names if name.startswith("msgspec-") and name.endswith(ending)]) == 1
        modules = ending.rpartition("-")[0] + ".pack"
        assert len([name for name in names if name.startswith("msgspec-") and name.endswith(modules)]) == 1


def test_what_a_job_carries_is_small(driver: Path) -> None:
    assert sum(path.stat().st_size for path in driver.rglob("*")) < 6_500_000  # Five Pythons' compiled modules: 2.7 MB.
