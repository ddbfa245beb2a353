"""Packages are installed before the script: by real pips, from wheels made here, into an interpreter of the job's own.

Checklist 33 and 35; numbers of its items in docstrings. No index is asked (PIP_NO_INDEX).
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.mpi.test_places import NOBODY, as_nobody
from tests.train.base import ROOT, Base, Done
from tests.train.live import live

TRAIN = ("-c", "from toolkit.cli.main import train; train()")


class Image:
    """An interpreter that the job may install into, and a folder of wheels for it."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.wheels = base.folder / "wheels"
        self.wheels.mkdir()
        home = base.folder / "image"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        self.python = home / "bin/python"
        (self.site,) = home.glob("lib/python*/site-packages")
        # The toolkit, and all that is beside this machine's msgspec: pip among it.
        (self.site / "here.pth").write_text(f"{ROOT}\n{Path(msgspec.__file__).parents[1]}\n")

    def hide_pip(self) -> None:
        """Have nothing but the toolkit and msgspec in the image."""
        site = self.base.folder / "no-pip"
        site.mkdir()
        for path in Path(msgspec.__file__).parents[1].glob("msgspec*"):
            (site / path.name).symlink_to(path)
        (self.site / "here.pth").write_text(f"{ROOT}\n{site}\n")

    @property
    def command(self) -> tuple[str, ...]:
        return str(self.python), *TRAIN

    @property
    def pip(self) -> dict[str, str]:
        return {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
        }

    def wheel(self, name: str, version: str = "1.0", text: str = "", metadata: str = "", **files: str) -> Path:
        """Write a wheel of one module, and *files* (by path, "__" for "/"), and return it."""
        info = f"{name}-{version}.dist-info"
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}.py", text)
            for file, content in files.items():
                wheel.writestr(file.replace("__", "/").replace("_dot_", "."), content)
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            wheel.writestr(f"{info}/METADATA", head + metadata)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return path

    def hold(self, wheel: Path) -> None:
        """Put *wheel* into the image, and out of pip's reach."""
        with zipfile.ZipFile(wheel) as content:
            content.extractall(self.site)
        wheel.unlink()

    def train(self, *prefix: str, **more: str) -> Done:
        return self.base.train({**self.pip, **more}, command=(*prefix, *self.command))


@pytest.fixture
def image(base: Base) -> Image:
    if not (Path(msgspec.__file__).parents[1] / "pip").is_dir():
        pytest.skip("needs pip beside msgspec")
    return Image(base)


# A package that pip builds without any other (its backend lies in it): when built it does what BUILD says.
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    {build}
    with zipfile.ZipFile(folder + "/slow-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("slow.py", "")
        wheel.writestr("slow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        wheel.writestr("slow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("slow-1.0.dist-info/RECORD", "")
    return "slow-1.0-py3-none-any.whl"
"""


def slow(folder: Path, build: str) -> Path:
    """Write a package that does *build* while it is built, and return its folder."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND.format(build=build.replace("\n", "\n    ")))
    return folder


def requirements_are_there_for(image: Image, entry: str) -> None:
    image.wheel("needed", text="word = 'the requirement'\n")
    image.base.program("needed\n", "requirements.txt")
    image.base.hyperparameters(program=entry)

    done = image.train()

    assert (done.status, done.stdout.splitlines()[-1]) == (0, b"the requirement"), done


def test_requirements_are_there_for_a_program(image: Image) -> None:
    """Contract point 33."""
    image.base.program("import needed\nprint(needed.word)\n")
    requirements_are_there_for(image, "train.py")


def test_requirements_are_there_for_a_package_with_setup_py(image: Image) -> None:
    """Contract points 33, 35: installed, then started with -m."""
    image.base.program("", "setup.py")
    slow_package = slow(image.base.folder / "package", "pass")
    for path in slow_package.iterdir():
        image.base.program(path.read_text(), path.name)
    image.base.program("import needed, slow\nassert __spec__.name == 'train'\nprint(needed.word)\n")
    requirements_are_there_for(image, "train.py")
    assert (image.site / "slow.py").exists()


def test_requirements_are_there_for_a_shell_script(image: Image) -> None:
    """Contract point 33: the predecessor left those alone."""
    image.base.program(f"{image.python} -c 'import needed; print(needed.word)'\n", "run.sh")
    requirements_are_there_for(image, "run.sh")


def test_pips_words_are_streamed(image: Image) -> None:
    """Contract point 33: seen while pip still works."""
    package = slow(image.base.folder / "slow", "open('building', 'w')\nimport time\ntime.sleep(600)")
    image.base.program(f"{package}\n", "requirements.txt")
    image.base.program("")

    with live(image.base, command=image.command, **image.pip) as running:
        running.until(b"Processing " + str(package).encode())
        running.signal()
        done = running.end()

    assert done.status == 143


def test_a_stop_during_the_installation_is_never_a_success(image: Image) -> None:
    """Contract points 8, 61: the script did not run; its platform would count 0 as done."""
    package = slow(image.base.folder / "slow", "open('building', 'w').close()\nimport time\ntime.sleep(600)")
    image.base.program(f"{package}\n", "requirements.txt")
    image.base.program("print('the script ran')\n")

    with live(image.base, command=image.command, **image.pip) as running:
        running.until(b"Processing ")
        running.signal()
        done = running.end(deadline_s=30)

    assert done.status == 143
    assert not done.succeeded
    assert b"the script ran" not in done.stdout
    assert done.failure is not None
    assert "stopped by SIGTERM" in done.failure


def test_pips_last_error_is_the_cause(image: Image) -> None:
    """Contract points 12, 33: behind a hundred lines of other words, with the prefix that people look for."""
    image.wheel("needed", "2.0")
    image.base.program("needed==1.0\n", "requirements.txt")
    image.base.program("print('the script ran')\n")

    done = image.train()

    assert done.status == 1
    assert b"the script ran" not in done.stdout
    assert done.failure is not None
    assert done.failure.startswith(
        'InstallRequirementsError:\nExitCode 1\nErrorMessage "No matching distribution found for needed==1.0"\n'
    )


def test_a_build_that_fails_is_the_cause_not_pips_note_about_it(image: Image) -> None:
    """Contract point 33."""
    package = slow(image.base.folder / "slow", "raise RuntimeError('no compiler here')")
    image.base.program(f"{package}\n", "requirements.txt")
    image.base.program("")

    done = image.train()

    assert done.status == 1
    assert done.failure is not None
    assert done.failure.startswith("InstallRequirementsError:")
    assert f"{package}; the build said last: RuntimeError: no compiler here" in done.failure[:1024]


def test_a_conflict_names_the_packages_and_what_each_of_them_wants(image: Image) -> None:
    image.wheel("one", metadata="Requires-Dist: needed==1.0\n")
    image.wheel("two", metadata="Requires-Dist: needed==2.0\n")
    image.wheel("needed", "1.0")
    image.wheel("needed", "2.0")
    image.base.program("one\ntwo\n", "requirements.txt")
    image.base.program("")

    done = image.train()

    assert done.failure is not None
    assert "one 1.0 depends on needed==1.0; two 1.0 depends on needed==2.0" in done.failure[:1024]


def test_tokens_in_pips_lines_are_masked_in_the_log_and_in_the_report(image: Image) -> None:
    image.base.program("https://127.0.0.1:9/x-1.0-py3-none-any.whl?token=abcd1234efgh5678\n", "requirements.txt")
    image.base.program("")

    done = image.train(PIP_RETRIES="1")

    assert done.status == 1
    assert b"127.0.0.1" in done.stderr
    assert "abcd1234efgh5678" not in done.log
    assert "abcd1234efgh5678" not in (done.failure or "") + str(done.outcome)


def test_an_environment_without_pip_is_installed_into_by_pythons_own(image: Image) -> None:
    image.hide_pip()
    image.wheel("needed", text="word = 'the requirement'\n")
    image.base.program("needed\n", "requirements.txt")
    image.base.program("import importlib.util, needed\nprint(needed.word, importlib.util.find_spec('pip'))\n")

    done = image.train(TOOLKIT_INSTALLER="pip")

    assert (done.status, done.stdout.splitlines()[-1]) == (0, b"the requirement None"), done
    assert "has no pip: " in done.log


def test_the_second_run_installs_nothing_until_the_requirements_change(image: Image) -> None:
    """Contract points 33, 73: as on a warm pool."""
    image.wheel("needed")
    image.wheel("needed", "2.0")
    image.base.program("import importlib.metadata\nprint(importlib.metadata.version('needed'))\n")
    image.base.program("needed==1.0\n", "requirements.txt")
    shared = image.base.folder / "shared"
    shared.mkdir()
    first = image.train(TMPDIR=str(shared))
    assert b"Successfully installed needed-1.0" in first.stdout

    second = image.train(TMPDIR=str(shared))
    image.base.program("needed==2.0\n", "requirements.txt")
    third = image.train(TMPDIR=str(shared))

    assert second.stdout == b"1.0\n"
    assert "requirements are already installed in this container: skipped" in second.log
    assert b"Successfully installed needed-2.0" in third.stdout
    assert third.stdout.endswith(b"\n2.0\n")
    # Left: the note of what is installed, and the lock, which a train that waits may have open.
    folder, lock = sorted(path.name for path in shared.iterdir())
    assert lock == f"toolkit-{os.getuid()}-pip.lock"
    assert [path.name for path in (shared / folder).iterdir()] == ["installed"]


def test_a_failed_installation_is_tried_again(image: Image) -> None:
    """Contract points 33, 73."""
    image.base.program("needed\n", "requirements.txt")
    image.base.program("print('ran')\n")
    assert image.train().status == 1
    image.wheel("needed")

    done = image.train()

    assert done.status == 0
    assert b"Successfully installed needed-1.0" in done.stdout


def test_two_trains_of_one_container_install_one_after_the_other(image: Image, tmp_path: Path) -> None:
    """Contract point 33: each build holds a name that the other must not find."""
    held = tmp_path / "held"
    build = f"import os, time\nos.mkdir({str(held)!r})\ntime.sleep(0.5)\nos.rmdir({str(held)!r})"
    (tmp_path / "other").mkdir()
    other = Base(tmp_path / "other")
    for base in (image.base, other):
        base.program(f"{slow(base.folder / 'slow', build)}\n", "requirements.txt")
        base.program("print('ran')\n")

    with (
        live(image.base, command=image.command, **image.pip) as first,
        live(other, command=image.command, **image.pip) as two,
    ):
        ends = [first.end(), two.end()]

    assert [done.status for done in ends] == [0, 0], ends


def test_a_plug_in_installs_for_itself(image: Image) -> None:
    """Contract points 33, 38."""
    image.base.program("no-such-thing\n", "requirements.txt")
    image.base.program("def main(): print('ran')\n", "plugged.py")

    done = image.train(SAGEMAKER_TRAINING_MODULE="plugged:main")

    assert (done.status, done.stdout) == (0, b"ran\n")


SYSTEM = Path("/usr/bin/python3")
PLACE = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'


def managed() -> Path:
    """Return where the system's Python, if it refuses pip (PEP 668) and can run this toolkit, installs to."""
    code = "import sys, sysconfig; print(sys.version_info[:2] == {}, sysconfig.get_path('stdlib'))"
    done = subprocess.run(
        [SYSTEM, "-I", "-c", code.format(sys.version_info[:2])], capture_output=True, text=True, check=False
    )
    same, _, library = done.stdout.strip().partition(" ")
    if same != "True" or not Path(library, "EXTERNALLY-MANAGED").exists():
        pytest.skip("needs Debian's or Ubuntu's Python at /usr/bin/python3, of this interpreter's version")
    if subprocess.run([SYSTEM, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        pytest.skip("needs pip of the system's Python (apt-get install python3-pip)")
    return Path(f"/usr/local/lib/{Path(library).name}/dist-packages")


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to cover the system's folder of packages")
@pytest.mark.parametrize(("variables", "status"), [({"container": "oci"}, 0), ({"PIP_BREAK_SYSTEM_PACKAGES": "0"}, 1)])
def test_a_python_of_the_operating_system_takes_requirements_in_a_container(
    base: Base, image: Image, variables: dict[str, str], status: int
) -> None:
    """PEP 668: Debian's pip says "externally-managed-environment" otherwise."""
    place = managed()
    image.wheel("wanted", text="GREETING = 'hello'\n")
    base.program("import wanted\nprint(wanted.GREETING)\n")
    (base.code / "requirements.txt").write_text("wanted\n")
    covered = ["unshare", "--mount", "sh", "-c", PLACE, "sh", str(place), str(SYSTEM), *TRAIN]
    beside = base.folder / "beside"
    beside.mkdir()
    for package in (ROOT / "toolkit", Path(msgspec.__file__).parent):
        (beside / package.name).symlink_to(package)

    done = base.train({**image.pip, "PYTHONPATH": str(beside), **variables}, command=covered)

    assert done.status == status, done
    assert done.stdout.endswith(b"hello\n") is (status == 0)
    if status:
        assert done.failure is not None
        assert done.failure.startswith("InstallRequirementsError:")
        assert "This environment is externally managed" in done.failure
        assert "run train with a virtual environment's Python" in done.failure


LOOKS = """
import importlib.metadata, os, subprocess, sys
import cover.one, cover.two, hidden, kept, shared
print(shared.word, importlib.metadata.version("shared"), sys.prefix, os.access(kept.__file__, os.W_OK), flush=True)
subprocess.run([sys.executable, "-c", "import shared, hidden; print('below', shared.word)"], check=True)
subprocess.run(["fresh-command"], check=True)
"""


@pytest.fixture
def closed(image: Image) -> Iterator[tuple[Image, tuple[str, ...]]]:
    """Give an image whose packages the job's user cannot write to, and what runs `train` as that user."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own, where *image* lies, are closed to other users.
        Path(folder).chmod(0o755)
        image = Image(Base(Path(folder)))
        yield image, as_nobody() if os.geteuid() == 0 else ()
        image.site.chmod(0o755)


def test_packages_lie_beside_those_of_an_image_that_cannot_be_written(closed: tuple[Image, tuple[str, ...]]) -> None:
    """Contract 33: unprivileged. What the image has is not installed again, what is upgraded is not removed."""
    image, prefix = closed
    image.hold(image.wheel("shared", "1.0", "word = 'old'", cover__one_dot_py=""))
    image.hold(image.wheel("kept", "1.0"))
    image.wheel("shared", "2.0", "word = 'new'", cover__two_dot_py="")
    entry = "[console_scripts]\nfresh-command = fresh:main\n"
    image.wheel(
        "fresh",
        text="import shared\ndef main(): print('command', shared.word)\n",
        metadata="Requires-Dist: kept\nRequires-Dist: shared>=2\n",
        **{
            "fresh-1.0_dot_dist-info__entry_points_dot_txt": entry,
            "more_dot_pth": "moredir\n",
            "moredir__hidden_dot_py": "",
        },
    )
    image.base.program("fresh\n", "requirements.txt")
    image.base.program(LOOKS)
    (image.base.folder / "tmp").mkdir()
    for path in (image.base.root, *image.base.root.rglob("*"), image.base.folder / "tmp"):
        os.chown(path, *((NOBODY, NOBODY) if prefix else (-1, -1)))
    image.site.chmod(0o555)

    done = image.train(*prefix, TMPDIR=str(image.base.folder / "tmp"))
    again = image.train(*prefix, TMPDIR=str(image.base.folder / "tmp"))

    home = image.python.parents[1]
    lines = [f"new 2.0 {home} False".encode(), b"below new", b"command new"]
    assert (done.status, done.stdout.splitlines()[-3:]) == (0, lines), done
    assert "cannot write to the image's packages: requirements are installed in" in done.log
    assert (again.status, again.stdout.splitlines()) == (0, lines), again
    assert (image.site / "shared.py").read_text() == "word = 'old'"
