"""The code: where it is from, what it may be, what is installed for it. Numbers: those of the contract's checklist."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from tests.train.base import SEES, Base

SUBMITTED = "print('the submitted one')\n"


def archive(path: Path, mode: str = "w:gz", **files: str) -> Path:
    """Write a tar at *path* with *files*: `train__py="..."` is train.py."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def submit(base: Base, source: object, **more: object) -> None:
    base.hyperparameters({"sagemaker_submit_directory": json.dumps(str(source)), **more})


@pytest.mark.parametrize(
    "form", ["folder", "file-uri", "tar.gz", "tar", "already there", "code channel", "network isolation"]
)
def test_the_source_is_taken_from_where_it_was_submitted(base: Base, form: str) -> None:
    """Contract points 29, 36."""
    folder = base.folder / "submitted"
    folder.mkdir()
    (folder / "train.py").write_text(SUBMITTED)
    channel = base.root / "input/data/code/sourcedir.tar.gz"
    if form == "folder":
        submit(base, folder)
    elif form == "file-uri":
        submit(base, f"file://{folder}")
    elif form == "tar.gz":
        submit(base, archive(base.folder / "source.tar.gz", train__py=SUBMITTED))
    elif form == "tar":
        submit(base, archive(base.folder / "source.tar", "w", train__py=SUBMITTED))
    elif form == "already there":
        base.program(SUBMITTED)
        submit(base, base.code)
    elif form == "code channel":
        archive(channel, train__py=SUBMITTED)
        base.inputs("code")
        submit(base, "s3://bucket/sourcedir.tar.gz")
    else:
        archive(channel, train__py=SUBMITTED)
        submit(base, channel)

    done = base.train()

    assert (done.status, done.stdout) == (0, b"the submitted one\n"), done


def test_a_submitted_source_wins_over_what_the_image_holds_and_this_is_said(base: Base) -> None:
    """Contract point 29 (F16): in one line, and never a mixture of both."""
    base.program("print('of the image')\n")
    base.program("", "left_over.py")
    submit(base, archive(base.folder / "source.tar.gz", train__py="import glob\nprint(glob.glob('*'))\n"))

    done = base.train()

    assert done.stdout == b"['train.py']\n", done
    assert len([line for line in done.stderr.decode().splitlines() if "left_over.py" in line]) == 1


def hostile(path: Path, member: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        text = SUBMITTED.encode()
        good = tarfile.TarInfo("train.py")
        good.size = len(text)
        tar.addfile(good, io.BytesIO(text))
        tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


@pytest.mark.parametrize("kind", ["parent", "absolute", "link", "device"])
def test_an_archive_cannot_reach_outside(base: Base, kind: str) -> None:
    """Contract point 30."""
    member = tarfile.TarInfo({"parent": "../escaped", "absolute": str(base.folder / "escaped")}.get(kind, "member"))
    if kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "../../../.."
    elif kind == "device":
        member.type = tarfile.CHRTYPE
    else:
        member.size = 1
    submit(base, hostile(base.folder / "source.tar.gz", member))

    done = base.train()

    assert done.status == 78
    assert member.name in done.log
    assert not list(base.folder.rglob("escaped"))


def test_a_setuid_bit_does_not_pass(base: Base) -> None:
    """Contract point 30."""
    member = tarfile.TarInfo("tool")
    member.size, member.mode = 1, 0o4755
    submit(base, hostile(base.folder / "source.tar.gz", member))

    done = base.train()

    assert done.status == 0
    assert (base.code / "tool").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("files", "entry", "message"),
    [
        ({"run.sh": "#!/bin/sh\necho shell\n", "setup.py": "raise SystemExit(1)"}, "run.sh", b"shell\n"),
        ({"train.py": "print('program')"}, "train.py", b"program\n"),
        ({"src/train.py": "print('deeper')"}, "src/train.py", b"deeper\n"),
        ({"pkg/__init__.py": "", "pkg/mod.py": "print(__name__, __spec__.name)"}, "pkg.mod", b"__main__ pkg.mod\n"),
        ({"run": "#!/bin/sh\necho executable\n"}, "run", b"executable\n"),
    ],
    ids=["shell script before setup.py", "program", "program in a folder", "module", "executable"],
)
def test_the_kind_of_entry_point_is_seen(base: Base, files: dict[str, str], entry: str, message: bytes) -> None:
    """Contract point 32: the files are made executable where they must be."""
    for name, text in files.items():
        base.program(text, name)
    base.hyperparameters(program=entry)

    done = base.train()

    assert (done.status, done.stdout) == (0, message), done


def test_a_script_runs_in_its_folder_by_the_interpreter_of_train(base: Base) -> None:
    """Contract point 32."""
    base.program("import os, sys\nprint(os.getcwd(), sys.executable)\n")

    done = base.train()

    assert done.stdout == f"{base.code} {sys.executable}\n".encode()


def test_requirements_are_installed_first_streamed_and_once(base: Base) -> None:
    """Contract 33: a package of this machine, so that no index is asked; into a folder of its own (PIP_TARGET)."""
    package = base.folder / "wheel"
    package.mkdir()
    base.program("import tiny_requirement\nprint('imported', tiny_requirement.__name__)\n")
    base.program(f"--no-index\n--find-links {package}\ntiny-requirement==1.0\n", "requirements.txt")
    wheel(package / "tiny_requirement-1.0-py3-none-any.whl")
    target = base.folder / "installed"
    environ = {"PIP_TARGET": str(target), "PYTHONPATH": str(target)}

    done = base.train(environ)
    again = base.train(environ)

    assert done.status == 0, done
    assert done.stdout.endswith(b"imported tiny_requirement\n")
    assert "Successfully installed tiny-requirement-1.0" in done.log
    assert again.status == 0
    assert "Successfully installed" not in again.log


def wheel(path: Path) -> None:
    import zipfile

    information = "tiny_requirement-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_requirement.py", "")
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-requirement\nVersion: 1.0\n")
        archive.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{information}/RECORD", "")


def test_pips_last_error_is_the_cause(base: Base) -> None:
    """Contract point 33."""
    base.program(SEES)
    base.program("--no-index\nno-such-distribution==1.2.3\n", "requirements.txt")

    done = base.train()

    assert done.status != 0
    assert done.failure is not None
    message = done.failure.partition('ErrorMessage "')[2].partition('"\n')[0]
    assert "No matching distribution found for no-such-distribution==1.2.3" in message


PACKAGE = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# A build backend of twenty lines, so that a package is built without asking an index for one.
BACKEND = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "walker-1.0-py3-none-any.whl"
    info = "walker-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.write("walker/__init__.py")
        wheel.write("walker/train.py")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: walker\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def test_a_package_is_installed_and_its_module_run(base: Base) -> None:
    """Contract point 35: an entry point inside the package, which the predecessor could not start (`-m src/train`)."""
    base.program(PACKAGE, "pyproject.toml")
    base.program(BACKEND, "backend.py")
    base.program("", "walker/__init__.py")
    base.program("import sys\nprint(__spec__.name, sys.argv[1:])\n", "walker/train.py")
    base.hyperparameters({"epochs": "3"}, program="walker/train.py")
    target = base.folder / "installed"

    done = base.train({"PIP_TARGET": str(target), "PYTHONPATH": str(target)})

    assert done.status == 0, done
    assert done.stdout.endswith(b"walker.train ['--epochs', '3']\n")
    assert (target / "walker/train.py").exists()
