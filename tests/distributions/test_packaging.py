"""The distribution never mixes with AWS's: which of the two is imported, and what each leaves when it goes."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from tests.distributions.conftest import DISTRIBUTION, install
from tests.project.test_repository import PYPROJECT
from tests.train.base import ROOT, Base

NAMED = "import sagemaker_training; print(sagemaker_training.__file__)"
THEIRS = "theirs = True\n"
OWN = "container-training-toolkit-sagemaker-training"


def site_of(python: Path) -> Path:
    base = str(python.parents[1])
    return Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))


def imported(python: Path) -> str:
    done = subprocess.run([python, "-c", NAMED], capture_output=True, text=True, cwd="/")
    return done.stdout.strip() or done.stderr


def theirs(folder: Path) -> Path:
    """Return a wheel with the name and the import name of AWS's package."""
    wheel = folder / "sagemaker_training-5.1.4-py3-none-any.whl"
    info = "sagemaker_training-5.1.4.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("sagemaker_training/__init__.py", THEIRS)
        file.writestr("sagemaker_training/environment.py", THEIRS)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: sagemaker-training\nVersion: 5.1.4\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = [*file.namelist(), f"{info}/RECORD"]
        file.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return wheel


def environment(folder: Path) -> Path:
    """Return the interpreter of an environment with the toolkit of this repository, and neither of the two."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    (site_of(python) / "zz-beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    return python


def find_own_wheel(wheels: list[Path]) -> Path:
    return next(wheel for wheel in wheels if wheel.name.startswith(OWN.replace("-", "_")))


def uninstall(python: Path, name: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    done = subprocess.run([*pip, "uninstall", "--quiet", "--yes", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_no_file_of_the_import_name_itself(wheels: list[Path]) -> None:
    names = [name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()]

    assert any(name.endswith("/sagemaker_training/environment.py") for name in names)
    assert [name for name in names if name.startswith("sagemaker_training/")] == []


def test_the_package_is_imported_in_the_whole_image(python: Path) -> None:
    assert "container_training_toolkit_sagemaker_training/sagemaker_training/__init__.py" in imported(python)


def test_sagemaker_training_itself_is_imported_whichever_was_installed_first(
    tmp_path: Path, wheels: list[Path]
) -> None:
    other = theirs(tmp_path)
    for name, order in (("first", (other, find_own_wheel(wheels))), ("last", (find_own_wheel(wheels), other))):
        python = environment(tmp_path / name)
        for wheel in order:
            install(python, wheel)

        assert imported(python) == str(site_of(python) / "sagemaker_training/__init__.py")


def test_each_of_the_two_is_whole_when_the_other_is_removed(tmp_path: Path, wheels: list[Path]) -> None:
    python = environment(tmp_path / "env")
    site = site_of(python)
    install(python, find_own_wheel(wheels), theirs(tmp_path))

    uninstall(python, OWN)
    left = (site / "sagemaker_training/environment.py").read_text()
    install(python, find_own_wheel(wheels))
    uninstall(python, "sagemaker-training")

    assert left == THEIRS
    assert "container_training_toolkit_sagemaker_training" in imported(python)
    assert not (site / "sagemaker_training").exists()


def test_check_says_that_sagemaker_training_itself_is_imported(
    base: Base, tmp_path: Path, wheels: list[Path], python: Path
) -> None:
    base.program("")
    both = environment(tmp_path / "env")
    install(both, find_own_wheel(wheels), theirs(tmp_path))

    first, other = (
        base.train(
            command=(str(interpreter), "-m", "toolkit", "check"),
            PATH=os.pathsep.join((str(interpreter.parent), "/bin")),
        )
        for interpreter in (python, both)
    )

    assert (first.status, other.status) == (0, 0), (first, other)
    assert "sagemaker_training is this toolkit's (container-training-toolkit-sagemaker-training 0.1.0)" in plain(
        first.log
    )
    assert f"sagemaker_training is AWS's sagemaker-training 5.1.4 in {site_of(both)}" in plain(other.log)
    assert "Uninstall it: pip uninstall sagemaker-training" in plain(other.log)


def plain(text: str) -> str:
    return " ".join(text.split())


def test_another_version_of_the_toolkit_is_refused_at_the_import(tmp_path: Path, python: Path) -> None:
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit/__init__.py").write_text('__version__ = "9.9.9"\n')
    (tmp_path / "toolkit/exit_codes.py").write_text("")

    done = subprocess.run([python, "-c", NAMED], capture_output=True, text=True, cwd=tmp_path)

    assert done.returncode == 1
    assert "expected container-training-toolkit 0.1.0, found 9.9.9" in done.stderr
    assert "Install container-training-toolkit-sagemaker-training==9.9.9" in done.stderr


def test_a_module_of_the_users_named_toolkit_is_named_and_not_run(tmp_path: Path, python: Path) -> None:
    (tmp_path / "toolkit.py").write_text("print('was run')\n")

    done = subprocess.run([python, "-c", NAMED], capture_output=True, text=True, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"found another one, {tmp_path}/toolkit.py, before it on sys.path. Give that one another name" in done.stderr


def test_both_distributions_have_one_version() -> None:
    version = PYPROJECT["project"]["version"]
    project = (DISTRIBUTION / "pyproject.toml").read_text()
    package = DISTRIBUTION / "container_training_toolkit_sagemaker_training/sagemaker_training/__init__.py"

    assert f'version = "{version}"' in project
    assert f'"container-training-toolkit=={version}"' in project
    assert f'__version__ = "{version}"' in package.read_text()
