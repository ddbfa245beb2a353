import codecs
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from toolkit.errors import InternalError, UserError
from toolkit.job.job import Folders, Job, Script
from toolkit.job.plan import Phase
from toolkit.train.source import installer, tree_digest
from toolkit.train.source.install import phase, remember
from toolkit.train.source.installer import in_container

MakeJob = Callable[..., Job]
Kind = Literal["program", "module", "package", "command", "plugin"]


@pytest.fixture
def code(folders: Folders) -> Path:
    folders.code.mkdir(parents=True)
    return folders.code


def script(folder: Path, kind: Kind = "program") -> Script:
    return Script(entry="train.py", kind=kind, folder=folder)


def must(planned: Phase | None) -> Phase:
    assert planned is not None
    return planned


def stamp(job: Job) -> Path:
    planned = must(phase(job)).skip_if
    assert planned is not None
    return planned


OPTIONS = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off")


def test_requirements_that_the_job_does_not_ask_for_are_left_alone(make_job: MakeJob, code: Path) -> None:
    (code / "requirements.txt").write_text("numpy\n")

    kinds: tuple[Kind, Kind] = ("program", "package")
    program, package = (make_job(script=script(code, kind), requirements=False) for kind in kinds)

    assert phase(program) is None
    assert must(phase(package)).main.argv[-1] == "."


@pytest.mark.parametrize(
    ("kind", "requirements", "packages", "failure"),
    [
        ("program", True, ("-r", "requirements.txt"), "InstallRequirementsError"),
        ("module", True, ("-r", "requirements.txt"), "InstallRequirementsError"),
        ("command", True, ("-r", "requirements.txt"), "InstallRequirementsError"),
        ("package", True, (".", "-r", "requirements.txt"), "InstallModuleError"),
        ("package", False, (".",), "InstallModuleError"),
    ],
)
def test_pip_is_asked_for_what_the_kind_needs(
    make_job: MakeJob, code: Path, kind: Kind, requirements: bool, packages: tuple[str, ...], failure: str
) -> None:
    if requirements:
        (code / "requirements.txt").write_text("numpy\n")

    planned = must(phase(make_job(script=script(code, kind), interpreter="/opt/python")))

    assert planned.main.argv == ("/opt/python", *OPTIONS, *packages)
    assert planned.main.cwd == code
    assert planned.failure == failure


@pytest.mark.parametrize("kind", ["program", "module", "command"])
@pytest.mark.parametrize("content", [None, "", "\n  # nothing yet\n\n"])
def test_nothing_asked_for_is_no_phase(make_job: MakeJob, code: Path, kind: Kind, content: str | None) -> None:
    if content is not None:
        (code / "requirements.txt").write_text(content)

    assert phase(make_job(script=script(code, kind))) is None


@pytest.mark.parametrize(
    ("lay", "reason"),
    [
        (lambda place: place.mkdir(), "a folder"),
        (lambda place: os.mkfifo(place), "a FIFO"),
        (
            lambda place: place.symlink_to("../shared/requirements.txt"),
            "a link to nothing (../shared/requirements.txt)",
        ),
    ],
    ids=["folder", "FIFO", "link"],
)
def test_requirements_that_are_no_file_are_an_error(
    make_job: MakeJob, code: Path, lay: Callable[[Path], None], reason: str
) -> None:
    lay(code / "requirements.txt")

    with pytest.raises(UserError) as caught:
        phase(make_job(script=script(code)))

    assert caught.value.message == f"expected a file, found {reason}"
    assert caught.value.where == str(code / "requirements.txt")


def test_a_plugin_installs_for_itself(make_job: MakeJob, code: Path) -> None:
    (code / "requirements.txt").write_text("numpy\n")

    assert phase(make_job(script=script(code, "plugin"))) is None


def test_the_users_environment_wins_over_ours(make_job: MakeJob, code: Path) -> None:
    (code / "requirements.txt").write_text("numpy\n")
    job = make_job(script=script(code))
    chosen = {"PIP_ROOT_USER_ACTION": "warn", "PIP_INDEX_URL": "https://index.example"}

    environ = must(phase(job)).main.environ
    theirs = must(phase(msgspec.structs.replace(job, environ=chosen))).main.environ

    container = {"PIP_BREAK_SYSTEM_PACKAGES": "1"} if in_container({}) else {}
    assert environ == {"PATH": "/usr/bin", "PIP_ROOT_USER_ACTION": "ignore", "PYTHONUNBUFFERED": "1", **container}
    assert theirs == {"PYTHONUNBUFFERED": "1", **container, **chosen}


class Environment:
    """A Python environment without pip, for which *beside* are there: "pip", "wheel", "uv"."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *beside: str) -> None:
        self.path = str(folder / "bin")
        (folder / "bin").mkdir()
        if "uv" in beside:
            (folder / "bin/uv").write_text("")
            (folder / "bin/uv").chmod(0o755)
        monkeypatch.setattr("toolkit.train.source.packages.is_there", lambda module, _job: module in beside)
        monkeypatch.setattr(installer, "bundled_pip", lambda: folder / "pip-26.whl" if "wheel" in beside else None)
        monkeypatch.setattr(installer, "_places_that_uv_misses", lambda: iter(()))


@pytest.mark.parametrize(
    ("beside", "command"),
    [
        (("pip", "wheel", "uv"), ("FOLDER/bin/uv", "pip", "install", "--no-progress", "--python", "PYTHON")),
        (("pip", "wheel"), ("PYTHON", *OPTIONS)),
        (("wheel",), ("PYTHON", "FOLDER/pip-26.whl/pip", *OPTIONS[2:])),
        (("uv",), ("FOLDER/bin/uv", "pip", "install", "--no-progress", "--python", "PYTHON")),
    ],
)
def test_uv_installs_where_it_is_else_pip_else_the_pip_that_python_brings(
    make_job: MakeJob,
    code: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    beside: tuple[str, ...],
    command: tuple[str, ...],
) -> None:
    (code / "requirements.txt").write_text("numpy\n")
    path = Environment(tmp_path, monkeypatch, *beside).path
    job = make_job(script=script(code), interpreter=sys.executable)
    job = msgspec.structs.replace(job, environ={"PATH": path, "PIP_INDEX_URL": "https://index.example"})

    main = must(phase(job)).main

    words = (word.replace("PYTHON", job.interpreter).replace("FOLDER", str(tmp_path)) for word in command)
    argv = tuple(word for word in main.argv if word != "--break-system-packages")  # In a container.
    assert argv == (*words, "-r", "requirements.txt")
    assert main.masked
    assert ("UV_DEFAULT_INDEX" in main.environ) == ("uv" in beside)


def test_where_nothing_can_install_it_is_said_before_the_start(
    make_job: MakeJob, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "requirements.txt").write_text("numpy\n")
    path = Environment(tmp_path, monkeypatch).path

    with pytest.raises(UserError, match="neither pip nor ensurepip nor uv"):
        phase(msgspec.structs.replace(make_job(script=script(code)), environ={"PATH": path}))


def test_the_pip_that_python_brings_is_a_file_that_runs() -> None:
    wheel = installer.bundled_pip()
    if wheel is None:
        pytest.skip("this Python has no ensurepip (Debian: python3-venv)")

    done = subprocess.run([sys.executable, f"{wheel}/pip", "--version"], capture_output=True, check=True, text=True)

    assert done.stdout.startswith("pip ")


def test_asking_before_the_code_is_in_place_is_our_own_fault(make_job: MakeJob) -> None:
    with pytest.raises(InternalError):
        phase(make_job())


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


BEFORE = {
    "requirements.txt": "numpy\n-r more/other.txt\n-c limits.txt\n-e ./local[x]\nwheel @ file:wheels/a.whl\n",
    "more/other.txt": "scipy\n",
    "limits.txt": "numpy<3\n",
    "local/setup.py": "setup()",
    "wheels/a.whl": "wheel",
    "train.py": "print()",
}
CHANGES: dict[str, tuple[dict[str, str], bool]] = {
    "nothing": ({}, True),
    "the script": ({"train.py": "print(2)"}, True),
    "a file beside": ({"result.txt": "1"}, True),
    "the requirements": ({"requirements.txt": BEFORE["requirements.txt"] + "torch\n"}, False),
    "an included file": ({"more/other.txt": "scipy==1\n"}, False),
    "a constraint": ({"limits.txt": "numpy<2\n"}, False),
    "a local project": ({"local/setup.py": "setup(1)"}, False),
    "a new file of a local project": ({"local/new.py": ""}, False),
    "a local wheel": ({"wheels/a.whl": "other"}, False),
}


@pytest.mark.parametrize(("change", "same"), CHANGES.values(), ids=CHANGES.keys())
def test_the_stamp_stands_for_all_that_requirements_name(
    make_job: MakeJob, code: Path, change: dict[str, str], same: bool
) -> None:
    write(code, BEFORE)
    job = make_job(script=script(code))
    first_stamp = stamp(job)

    write(code, change)

    assert (stamp(job) == first_stamp) is same


PACKAGE_CHANGES: dict[str, tuple[dict[str, str], bool]] = {
    "what pip and Python leave behind": (
        {"x.egg-info/PKG-INFO": "1", "build/lib/train.py": "1", "pkg/__pycache__/a.pyc": "1", ".git/HEAD": "1"},
        True,
    ),
    "a module": ({"pkg/train.py": "changed"}, False),
    "the project file": ({"pyproject.toml": "[build-system]\nrequires=[]\n[project]\nname='y'\n"}, False),
    "a module of the same size and time": ({"pkg/train.py": "secone"}, False),
}


@pytest.mark.parametrize(("change", "same"), PACKAGE_CHANGES.values(), ids=PACKAGE_CHANGES.keys())
def test_the_stamp_of_a_package_stands_for_its_content(
    make_job: MakeJob, code: Path, change: dict[str, str], same: bool
) -> None:
    write(code, {"pyproject.toml": "[build-system]\nrequires=[]\n[project]\nname='x'\n", "pkg/train.py": "second"})
    os.utime(code / "pkg/train.py", (0, 0))
    job = make_job(script=script(code, "package"))
    first_stamp = stamp(job)

    write(code, change)
    os.utime(code / "pkg/train.py", (0, 0))

    assert (stamp(job) == first_stamp) is same


def test_another_interpreter_has_another_stamp(make_job: MakeJob, code: Path, tmp_path: Path) -> None:
    write(code, BEFORE)
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    first = stamp(make_job(script=script(code), interpreter=str(python)))
    python.rename(tmp_path / "kept")  # Kept, so that its inode is not given out again.

    python.symlink_to(sys.executable)

    assert stamp(make_job(script=script(code), interpreter=str(python))) != first
    assert stamp(make_job(script=script(code), interpreter=sys.executable)) != first


def test_requirements_that_include_each_other_end(make_job: MakeJob, code: Path) -> None:
    write(code, {"requirements.txt": "-r other.txt\n", "other.txt": "-rrequirements.txt\nnumpy\n"})
    job = make_job(script=script(code))
    first_stamp = stamp(job)

    write(code, {"other.txt": "-rrequirements.txt\nscipy\n"})

    assert stamp(job) != first_stamp


def test_requirements_that_name_the_whole_file_system_are_pips_to_judge(
    make_job: MakeJob, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read through, /proc/kmsg too, which waits for the kernel's next word."""
    monkeypatch.setattr(tree_digest, "MOST_FILES", 50)
    (code / "requirements.txt").write_text("/\n")
    planned = must(phase(make_job(script=script(code))))
    (code / "requirements.txt").write_text("/proc/kmsg\n")
    kernel = must(phase(make_job(script=script(code))))

    assert planned.skip_if is None
    assert kernel.skip_if is not None


def test_a_long_chain_of_includes_counts_to_its_end(make_job: MakeJob, code: Path) -> None:
    write(
        code, {"requirements.txt": "-r 0.txt\n", **{f"{index}.txt": f"-r {index + 1}.txt\n" for index in range(2000)}}
    )
    write(code, {"2000.txt": "numpy\n"})
    job = make_job(script=script(code))
    first_stamp = stamp(job)

    write(code, {"2000.txt": "scipy\n"})

    assert stamp(job) != first_stamp


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_requirements_are_read_by_their_byte_order_mark_as_pip_does(
    make_job: MakeJob, code: Path, encoding: str
) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (code / "requirements.txt").write_bytes(mark + "# none\n".encode(encoding))
    assert phase(make_job(script=script(code))) is None

    (code / "requirements.txt").write_bytes(mark + "./local\n".encode(encoding))
    write(code, {"local/setup.py": "setup()"})
    job = make_job(script=script(code))
    first_stamp = stamp(job)
    write(code, {"local/setup.py": "setup(1)"})

    assert stamp(job) != first_stamp


@pytest.mark.parametrize(
    "line", [b"num\0py", b"./a\0b", b"-r a\0b.txt", b"./" + b"a" * 5000, b"-r " + b"a" * 5000, b"\xff\xfe\xfd"]
)
def test_a_line_that_can_name_no_file_is_left_to_pip(make_job: MakeJob, code: Path, line: bytes) -> None:
    (code / "requirements.txt").write_bytes(line + b"\n")

    assert phase(make_job(script=script(code))) is not None


def test_a_stamp_is_there_once_remembered(make_job: MakeJob, code: Path, folders: Folders) -> None:
    write(code, BEFORE)
    job = make_job(script=script(code))
    assert not stamp(job).exists()

    remember(stamp(job))
    remember(stamp(job))

    assert stamp(job).exists()
    assert stamp(job).is_relative_to(folders.scratch)


def test_a_stamp_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    remember(tmp_path / "file" / "stamp")

    assert (tmp_path / "file").is_file()


def write_wheel(folder: object, name: str) -> None:
    """Write a wheel of one module. (Its text is a build backend's, too: it stands alone.)"""
    import zipfile

    with zipfile.ZipFile(f"{folder}/{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "x = 1\n")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder of one wheel, which pip can install without an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "tiny_thing")
    return folder


def run(job: Job, site: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """Run the phase's process as it is, into *site* and without any index."""
    environ = {"PATH": os.defpath, "PIP_TARGET": str(site), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_CACHE_DIR": str(site.parent / "cache")}
    main = must(phase(msgspec.structs.replace(job, environ=environ))).main
    return subprocess.run(main.argv, cwd=main.cwd, env=main.environ, capture_output=True, text=True, check=False)


def test_pip_takes_the_command_and_installs(make_job: MakeJob, code: Path, wheels: Path, tmp_path: Path) -> None:
    write(code, {"requirements.txt": "tiny-thing==1.0\n"})

    done = run(make_job(script=script(code), interpreter=sys.executable), tmp_path / "site", wheels)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "tiny_thing.py").exists()
    assert done.stderr == ""


def test_pip_installs_a_package_of_a_pyproject_alone(
    make_job: MakeJob, code: Path, wheels: Path, tmp_path: Path
) -> None:
    backend = """
def build_wheel(folder, config_settings=None, metadata_directory=None):
    write_wheel(folder, "job")
    return "job-1.0-py3-none-any.whl"
"""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    write(code, {"pyproject.toml": system, "backend.py": inspect.getsource(write_wheel) + backend})
    write(code, {"requirements.txt": "tiny-thing\n"})

    done = run(make_job(script=script(code, "package"), interpreter=sys.executable), tmp_path / "site", wheels)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "job.py").exists()
    assert (tmp_path / "site" / "tiny_thing.py").exists()


def test_a_requirement_that_is_nowhere_leaves_pips_reason_last(
    make_job: MakeJob, code: Path, wheels: Path, tmp_path: Path
) -> None:
    write(code, {"requirements.txt": "no-such-thing-at-all\n"})

    done = run(make_job(script=script(code), interpreter=sys.executable), tmp_path / "site", wheels)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ERROR: No matching distribution found for no-such-thing-at-all"


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        (".dockerenv", {}, True),
        ("run/.containerenv", {}, True),
        ("", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ("", {"container": "lxc"}, True),
        ("", {"container": ""}, False),
        ("etc/os-release", {"HOME": "/root"}, False),
    ],
)
def test_a_container_is_known_by_files_and_variables(
    tmp_path: Path, name: str, environ: dict[str, str], expected: bool
) -> None:
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert in_container(environ, tmp_path) is expected


def test_pip_may_install_into_a_containers_own_python_unless_the_user_forbids(make_job: MakeJob, code: Path) -> None:
    (code / "requirements.txt").write_text("numpy\n")
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    forbidden = {**inside, "PIP_BREAK_SYSTEM_PACKAGES": "0"}
    job = make_job(script=script(code))

    environ = must(phase(msgspec.structs.replace(job, environ=inside))).main.environ
    theirs = must(phase(msgspec.structs.replace(job, environ=forbidden))).main.environ

    assert environ["PIP_BREAK_SYSTEM_PACKAGES"] == "1"
    assert theirs["PIP_BREAK_SYSTEM_PACKAGES"] == "0"
