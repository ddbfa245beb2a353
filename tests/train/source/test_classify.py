import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.base import ROOT
from toolkit.errors import UserError
from toolkit.train.source.classify import classify, validate_entry_point


def lay(folder: Path, *names: str) -> Path:
    for name in names:
        path, _, content = name.partition("=")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


PYPROJECT = "pyproject.toml=[build-system]\nrequires=[]\n[project]\nname='x'\n"

# files, entry, kind, entry of the script
KINDS = [
    (["train.py"], "train.py", "program", "train.py"),
    (["src/train.py"], "src/train.py", "program", "src/train.py"),
    (["train.v2.py"], "train.v2.py", "program", "train.v2.py"),
    (["run.sh"], "run.sh", "command", "run.sh"),
    (["bin/run=#!/bin/sh\n"], "bin/run", "command", "bin/run"),
    (["pkg/mod.py"], "pkg.mod", "module", "pkg.mod"),
    (["pkg/__main__.py"], "pkg", "module", "pkg"),
    (["pkg/mod/__main__.py"], "pkg/mod", "module", "pkg.mod"),
    (["train.py"], "train", "module", "train"),
    (["pkg.mod=#!/bin/sh\n", "pkg/mod.py"], "pkg.mod", "command", "pkg.mod"),
    # Packages.
    (["setup.py", "train.py"], "train.py", "package", "train"),
    (["setup.py", "pkg/__init__.py", "pkg/train.py"], "pkg/train.py", "package", "pkg.train"),
    (["setup.py", "pkg/train.py"], "pkg.train", "package", "pkg.train"),
    (["setup.py", "src/pkg/__init__.py", "src/pkg/train.py"], "pkg.train", "package", "pkg.train"),
    (["setup.py", "lib/cli.py"], "cli.py", "package", "cli"),
    (["setup.py"], "dependency.cli", "package", "dependency.cli"),
    (["setup.py", "src/train.py"], "src/train.py", "package", "src/train.py"),
    (["setup.py", "src/__init__.py", "src/train.py"], "src/train.py", "package", "src.train"),
    (["setup.py", "train-it.py"], "train-it.py", "package", "train-it.py"),
    (["setup.py", "run.sh"], "run.sh", "command", "run.sh"),
    (["setup.py", "tool=#!/bin/sh\n"], "tool", "command", "tool"),
    ([PYPROJECT, "train.py"], "train.py", "package", "train"),
    (["pyproject.toml=# x\n [build-system]\n", "train.py"], "train.py", "package", "train"),
    (["pyproject.toml=[project.scripts]\n", "train.py"], "train.py", "program", "train.py"),
    # Not packages: tools' settings only, or not at the top.
    (["pyproject.toml=[tool.ruff]\nx = '[build-system]'\n", "train.py"], "train.py", "program", "train.py"),
    (["pyproject.toml=[project]\nname = 'app'\n", "train.py"], "train.py", "program", "train.py"),
    (["pyproject.toml=[tool.project]\n", "train.py"], "train.py", "program", "train.py"),
    (["lib/setup.py", "train.py"], "train.py", "program", "train.py"),
]


@pytest.mark.parametrize(
    ("files", "entry", "kind", "expected_entry"), KINDS, ids=[f"{row[1]} as {row[2]}" for row in KINDS]
)
def test_the_kind_follows_from_the_entry_and_what_is_there(
    tmp_path: Path, files: list[str], entry: str, kind: str, expected_entry: str
) -> None:
    script = classify(lay(tmp_path, *files), entry, None, "json")

    assert (script.kind, script.entry) == (kind, expected_entry)
    assert (script.folder, script.argument_style) == (tmp_path, "json")


@pytest.mark.parametrize(
    "entry",
    ["a", "train.py", ".hidden.py", "_x.py", "src/train.py", "a/b/c+d-e_f.G.py", "0.py", "a/-b.py"],
)
def test_names_that_may_be_started(entry: str) -> None:
    validate_entry_point(entry)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        ".",
        "a/",
        "a//b.py",
        "./train.py",
        "a/./b.py",
        "../train.py",
        "a/../b.py",
        "/opt/ml/code/train.py",
        "-c",
        "--version",
        "train.py;ls",
        "$(ls).py",
        "my train.py",
        "trän.py",
        "a\\b.py",
        "~/a.py",
        "tr\nain.py",
        "train.py\n",
    ],
)
def test_names_that_may_not_be_started_are_refused_with_the_name(entry: str) -> None:
    with pytest.raises(UserError, match="expected a path within the code folder") as caught:
        validate_entry_point(entry)

    assert repr(entry) in caught.value.message


@pytest.mark.parametrize(
    ("files", "entry", "meant"),
    [
        (["train.py", "util.py"], "trian.py", "Did you mean 'train.py'?"),
        (["src/train.py", "util.py"], "train.py", "Did you mean 'src/train.py'?"),
        (["train.sh", "train.py"], "src/train.py", "Did you mean 'train.py'?"),
        (["src/train.py"], "src/trains", "Did you mean 'src/train.py'?"),
        (["run.sh"], "runs.sh", "Did you mean 'run.sh'?"),
        (["setup.py", "train.py"], "trian.py", "Did you mean 'train.py'?"),
        (["setup.py", "train.py"], "trian", "Did you mean 'train.py'?"),
        (["pkg/mod.py"], "pkg.mode", "Did you mean 'pkg/mod.py'?"),
        (["pkg/__init__.py"], "pkg", ""),
        (["zebra.py"], "a/b.py", ""),
        (["zebra.py"], "x" * 300, ""),
        (["zebra.py"], "x" * 300 + ".py", ""),
        (["setup.py"], "x" * 300, ""),
        (["zebra.py"], "m." * 3000 + "n", ""),
    ],
)
def test_a_missing_entry_says_what_was_looked_for_where_and_what_is_there(
    tmp_path: Path, files: list[str], entry: str, meant: str
) -> None:
    with pytest.raises(UserError) as caught:
        classify(lay(tmp_path, *files), entry, None, "sagemaker")

    assert f"no {entry!r} in {tmp_path}, which holds " in caught.value.message
    assert all(name in caught.value.message for name in files)
    assert caught.value.hint == meant


PYTHON_CODE = "import sys\nsys.exit(3)\n"
UNSAID = "expected a script that says what runs it, found {}: not named .py or .sh, no first line such as #!/bin/sh"


@pytest.mark.parametrize(
    ("entry", "mode", "message", "hint"),
    [
        (
            "train.PY",
            0o644,
            "expected a script whose name ends in .py or .sh, found train.PY",
            "Rename it to train.py.",
        ),
        (
            "train.Py",
            0o755,
            "expected a script whose name ends in .py or .sh, found train.Py",
            "Rename it to train.py.",
        ),
        ("train", 0o644, UNSAID.format("train"), "Name it train.py or train.sh; or give it such a line; or, where"),
        ("src/notes.md", 0o600, UNSAID.format("notes.md"), "Name it notes.py or notes.sh; or give it such a line"),
        ("job.yml.txt", 0o644, UNSAID.format("job.yml.txt"), "Name it job.yml.py or"),
        ("NB.IPYNB", 0o755, "expected a script, found a notebook, NB.IPYNB", "Make one of it: jupyter nbconvert"),
    ],
)
def test_text_that_does_not_say_what_runs_it_is_not_given_to_a_shell(
    tmp_path: Path, entry: str, mode: int, message: str, hint: str
) -> None:
    lay(tmp_path, f"{entry}={PYTHON_CODE}")
    (tmp_path / entry).chmod(mode)

    with pytest.raises(UserError) as caught:
        classify(tmp_path, entry, None, "sagemaker")

    assert caught.value.message.startswith(message)
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("entry", "content", "mode", "through"),
    [
        ("run", "echo hello\n", 0o755, ("/bin/sh",)),
        ("run.sh", "echo hello\n", 0o644, ("/bin/sh",)),
        ("train.PY", "#!/usr/bin/env python3\n", 0o644, ()),
        ("run.bash", "#!/bin/bash\n", 0o644, ()),
        ("tool", "\x7fELF", 0o644, ()),
    ],
)
def test_a_first_line_a_name_or_the_mode_says_what_runs_a_file(
    tmp_path: Path, entry: str, content: str, mode: int, through: tuple[str, ...]
) -> None:
    lay(tmp_path, f"{entry}={content}")
    (tmp_path / entry).chmod(mode)

    assert classify(tmp_path, entry, None, "sagemaker").through == through


@pytest.mark.parametrize("entry", ["train.py", "run.sh", "train"])
def test_an_entry_that_is_there_but_no_file_is_told_as_what_it_is(tmp_path: Path, entry: str) -> None:
    lay(tmp_path, "util.py")
    file = tmp_path / entry
    makers: list[tuple[Callable[[], object], str]] = [
        (lambda: os.mkfifo(file), "a FIFO"),
        (lambda: file.symlink_to("gone"), "a link to nothing (gone)"),
        (lambda: file.symlink_to(file), "a link to nothing ("),
        *([(file.mkdir, "a folder")] if "." in entry else []),
    ]
    for make, kind in makers:
        make()

        with pytest.raises(UserError) as caught:
            classify(tmp_path, entry, None, "sagemaker")

        assert f"expected a script, but {entry!r} in {tmp_path} is {kind}" in caught.value.message
        assert caught.value.hint == ""
        if not kind.startswith("a folder"):
            file.unlink()


def test_a_long_list_of_files_is_cut_and_caches_are_left_out(tmp_path: Path) -> None:
    lay(tmp_path, *(f"f{number:02}.py" for number in range(12)), "__pycache__/a.pyc", ".git/HEAD", "deep/a.py")

    with pytest.raises(UserError) as caught:
        classify(tmp_path, "nothing-alike", None, "sagemaker")

    listing = ", ".join(f"f{number:02}.py" for number in range(10))
    assert caught.value.message.endswith(f"which holds {listing}, ...")


@pytest.mark.parametrize("entry", [None, ""])
def test_no_entry_at_all_is_an_error(tmp_path: Path, entry: str | None) -> None:
    with pytest.raises(UserError, match=f"no entry point is given for {tmp_path}, which holds train.py"):
        classify(lay(tmp_path, "train.py"), entry, None, "sagemaker")


def test_a_missing_code_folder_holds_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which holds no files"):
        classify(tmp_path / "absent", "train.py", None, "sagemaker")


def test_a_notebook_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found a notebook") as caught:
        classify(lay(tmp_path, "train.ipynb={}"), "train.ipynb", None, "sagemaker")

    assert caught.value.hint == "Make one of it: jupyter nbconvert --to script train.ipynb"


def test_a_code_folder_that_may_not_be_read_is_named_with_its_mode() -> None:
    program = (
        "import os, sys, pathlib\nfrom toolkit.train.source.classify import classify\n"
        "if not os.getuid():\n    os.chdir('/'); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: classify(pathlib.Path(sys.argv[1]), 'train.py', None, 'sagemaker')\n"
        "except Exception as error: print(error)\n"
    )

    with tempfile.TemporaryDirectory() as folder:  # Others may not look into pytest's own.
        Path(folder).chmod(0o700 if os.geteuid() == 0 else 0o000)
        command = (sys.executable, "-c", program, folder)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.stderr == ""
    assert "expected a code folder that user " in done.stdout
    assert f"may read, found a folder of user {os.getuid()} with mode " in done.stdout


def test_a_plugin_comes_before_an_entry(tmp_path: Path) -> None:
    script = classify(lay(tmp_path, "train.py"), "train.py", "pkg.mod:main", "sagemaker")

    assert (script.kind, script.entry) == ("plugin", "pkg.mod:main")


@pytest.mark.parametrize(
    ("content", "through"),
    [
        (b"#!/bin/bash\necho\n", ()),
        (b"#!/usr/bin/env python3\n", ()),
        (b"\x7fELF\x02\x01\x01\0\0", ()),
        (b"\x7fELF, cut short", ()),
        (b"echo hello\n", ("/bin/sh",)),
        (b"", ("/bin/sh",)),
    ],
)
def test_a_command_is_made_executable_and_started_by_a_shell_only_without_a_program_of_its_own(
    tmp_path: Path, content: bytes, through: tuple[str, ...]
) -> None:
    (tmp_path / "run.sh").write_bytes(content)
    (tmp_path / "run.sh").chmod(0o640)

    script = classify(tmp_path, "run.sh", None, "sagemaker")

    assert script.through == through
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o750


def test_windows_line_ends_are_named_before_the_kernel_says_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"#!/bin/bash\r\necho\r\n")

    with pytest.raises(UserError, match=r"the first line of run.sh ends as on Windows"):
        classify(tmp_path, "run.sh", None, "sagemaker")


@pytest.mark.parametrize(
    ("name", "text", "flaw"),
    [
        ("run.sh", b"#!/bin/bash\nset -e\r\ntrain\r\n", "Line 2 of run.sh ends as on Windows"),
        ("run.sh", b"echo a\necho b\nset -e\r\n", "Line 3 of run.sh ends as on Windows"),
        ("run.sh", b"set -e\r\necho\r\n", "Line 1 of run.sh ends as on Windows"),
        ("job", b"#!/usr/bin/env -S bash -e\necho\r\n", "Line 2 of job ends as on Windows"),
        ("run.sh", b"\xef\xbb\xbfecho a\n", "run.sh begins with a byte order mark"),
        ("run.sh", b"#!/bin/sh\necho a\n", ""),
        ("run.sh", b"#!/bin/sh\nprintf 'a\\r\\n'\n", ""),
        # What reads these lines does not mind.
        ("job", b"#!/usr/bin/env python3\nprint(1)\r\n", ""),
        ("run.sh", b"\x7fELF\r\n", ""),
    ],
)
def test_a_shell_script_with_windows_line_ends_says_where_and_how_to_mend_it(
    tmp_path: Path, name: str, text: bytes, flaw: str
) -> None:
    (tmp_path / name).write_bytes(text)

    found_flaw = classify(tmp_path, name, None, "sagemaker").flaw

    assert bool(found_flaw) == bool(flaw)
    assert found_flaw.startswith(flaw)
    if found_flaw:
        subprocess.run(
            found_flaw.partition(": ")[2].partition("as: ")[2] or found_flaw.partition(": ")[2],
            shell=True,
            cwd=tmp_path,
        )
        assert classify(tmp_path, name, None, "sagemaker").flaw == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xef\xbb\xbf#!/bin/bash\necho\n", "byte order mark, before its '#!'"),
        (b"\xef\xbb\xbf#!/bin/bash\r\necho\r\n", "byte order mark, before its '#!'"),
        ("#!/bin/bash\necho\n".encode("utf-16"), "UTF-16"),
    ],
)
@pytest.mark.parametrize("name", ["run.sh", "job"])
def test_a_mark_before_the_first_line_is_named_with_the_command_that_removes_it(
    tmp_path: Path, name: str, text: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(text)

    with pytest.raises(UserError, match=message) as caught:
        classify(tmp_path, name, None, "sagemaker")

    subprocess.run(caught.value.hint.partition("as: ")[2], shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / name).read_bytes().startswith(b"#!/bin/bash")


def test_on_a_read_only_mount_the_first_line_s_program_starts_the_command(tmp_path: Path) -> None:
    code = tmp_path / "code"
    lay(code, "run.sh=#!/usr/bin/env -S bash -e\n", "plain.sh=echo\n")
    if subprocess.run(["mount", "--bind", code, code], capture_output=True).returncode:
        pytest.skip("needs to be allowed to mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", code], check=True)

        marked = classify(code, "run.sh", None, "sagemaker")
        plain = classify(code, "plain.sh", None, "sagemaker")

        assert not os.access(code / "run.sh", os.X_OK)
        assert marked.through == ("/usr/bin/env", "-S bash -e")
        assert plain.through == ("/bin/sh",)
    finally:
        subprocess.run(["umount", code], check=True)
