"""One place encodes paths of any bytes; one place walks folders that others write, and tells what is there from what
cannot be looked at."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import layers

PACKAGE = Path(__file__).parents[2] / "toolkit"

# Files that encode JSON without `records.encode`, with the reason why no path of any bytes gets there.
ENCODES = {
    "records.py": "the one place",
    "metrics/file.py": "samples: names and numbers, encoded for every line",
    "series/sample_writer.py": "the monitor's own names of columns",
    "series/debugger_writer.py": "the monitor's own names of metrics",
    "commands/report/document.py": "the schema",
    "commands/report/html/packing.py": "numbers",
    "job/document_schemas.py": "the schemas",
    "parallelism/decision.py": "names of modules; on the base layer",
    "traces/merging.py": "events, which came from JSON",
    "rank/modelparallel/world.py": "the ranks' configuration, which came from JSON",
    "rank/modelparallel/recorder.py": "names of modules and numbers",
    "rank/modelparallel/tf/partitioned.py": "names of layers",
}


@functools.cache
def calls(path: Path) -> tuple[tuple[int, str], ...]:
    """Return (line, dotted name) for each call in *path*: "os.walk", or ".glob" for a method of a value."""
    return tuple(
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )


def names_of_calls(path: Path) -> Iterator[str]:
    """Yield the names of what *path* calls: "open", "os.open", or "path.open" for a method of a value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            yield ast.unparse(node.func)


def test_json_is_encoded_where_names_of_any_bytes_are_taken() -> None:
    encoding = {
        place
        for place, path in layers.places(PACKAGE).items()
        for _, name in calls(path)
        if name in ("msgspec.json.encode", "msgspec.json.Encoder")
    }

    assert sorted(encoding - set(ENCODES)) == [], "use records.encode, or give the reason in ENCODES"
    assert sorted(set(ENCODES) - encoding) == []


# What lists folders outside of folders.py. `os.walk` and `glob` pass over what cannot be listed, the others raise.
LISTING = ("os.walk", "os.fwalk", "os.listdir", "os.scandir", "glob.glob", "glob.iglob")
LISTING_METHODS = ("glob", "rglob", "iterdir")
LISTS = {
    "folders.py": "the one place",
    "status_pages/pages.py": "the run's own folder in memory; without it no rank has a page",
    "machine.py": "/sys and /proc: what is not there is not measured",
    "train/probe/ranks.py": "/proc",
    "train/probe/port.py": "/proc",
    "train/supervise/kernel.py": "/proc",
    "monitor/processes.py": "/proc",
    "monitor/sources/traffic.py": "/sys",
    "monitor/step_reader.py": "the run's own folder, many times a second; an error ends nothing and is tried again",
    "commands/simulate/containers.py": "/dev",
    "commands/simulate/owners.py": "root's, by descriptors, so that no link is followed; the rest stays root's",
    "storage/scan.py": "/proc",
    "commands/simulate/mounts.py": "a program of the standard library alone; an error ends it with the reason",
    "cli/docs.py": "the toolkit's own pages",
    "rank/hook/kubeflow_progress.py": "the run's own folder; beside the script, the standard library alone",
    "rank/hook/jax_rank.py": "/proc",
    "rank/hook/site/sitecustomize.py": "/proc",
    "rank/profiler/tensorflow_window.py": "the folder that TensorFlow's profiler has just made for this window",
    "rank/compiler/torch/dump.py": "how large the toolkit's own dump is; beside the script",
    "rank/compiler/torch/budget.py": "/proc",
}


def test_folders_are_listed_in_one_place() -> None:
    """An error of the file system is not an empty folder: `folders` tells the two apart."""
    listing = {
        place
        for place, path in layers.places(PACKAGE).items()
        for _, name in calls(path)
        if name in LISTING or (name.rpartition(".")[2] in LISTING_METHODS and not name.startswith(("ast.", "folders.")))
    }

    assert sorted(listing - set(LISTS)) == [], "use toolkit/folders.py, or give the reason in LISTS"
    assert sorted(set(LISTS) - listing) == []


# What takes an error of the file system for "no": of os.path always, of pathlib since Python 3.14. `exists(PATH)` and
# the others of folders.py tell the two apart.
LOOKING = tuple(f"os.path.{name}" for name in ("exists", "lexists", "isfile", "isdir", "islink", "ismount"))
LOOKING_METHODS = (
    "exists",
    "is_file",
    "is_dir",
    "is_symlink",
    "is_mount",
    "is_fifo",
    "is_socket",
    "is_block_device",
    "is_char_device",
)
LOOKING_NAMES = {*LOOKING_METHODS, *(name.rpartition(".")[2] for name in LOOKING)}
# Of an os.DirEntry these raise what is not ENOENT.
OF_ENTRIES = ("entry.is_symlink", "entry.is_dir", "entry.is_file", "e.is_dir")
LOOKS = {
    "commands/simulate/mounts.py": "a program of the standard library alone; mounting gives the error",
    "rank/profiler/archive.py": "the run's own folder, else /tmp; a trace that cannot be seen cannot be written",
    "rank/profiler/window.py": "the file that Kineto has just written, to be told that there is none",
    "rank/hook/site/sitecustomize.py": "the run's own folder; beside the script, the standard library alone",
    "train/provenance/trees.py": "DirEntry.is_file tells every error but ENOENT; one makes the digest not whole",
}
# Functions of the toolkit's own with such names.
OWN = ("tracing.exists", "step_timer.exists")


def looks(path: Path) -> Iterator[str]:
    """Yield each mention in *path* of what takes an error for "no", called or handed on."""
    content = path.read_text(encoding="utf-8")
    if not any(name in content for name in LOOKING_NAMES):
        return
    entries = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in OF_ENTRIES:
            # Only an os.DirEntry takes this keyword in every Python.
            if node.keywords or ast.unparse(node.func) == "entry.is_symlink":
                entries.add(node.func)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os.path", "posixpath"):
            yield from (f"os.path.{alias.name}" for alias in node.names if f"os.path.{alias.name}" in LOOKING)
        elif isinstance(node, ast.Attribute) and node.attr in LOOKING_NAMES and node not in entries:
            name = ast.unparse(node)
            if name in LOOKING or (
                node.attr in LOOKING_METHODS and name not in OWN and not name.startswith("folders.")
            ):
                yield name


def test_an_error_of_the_file_system_is_not_taken_for_nothing_there() -> None:
    looking = {place: sorted(looks(path)) for place, path in layers.places(PACKAGE).items()}
    looking = {place: names for place, names in looking.items() if names}

    assert {place: looking[place] for place in sorted(set(looking) - set(LOOKS))} == {}, (
        "use exists, is_file, is_dir, may_exist of toolkit/folders.py, or give the reason in LOOKS"
    )
    assert sorted(set(LOOKS) - set(looking)) == []


@pytest.mark.parametrize(
    "line",
    [
        "path.exists()",
        "self._path.exists()",
        "Path(name).is_file()",
        "(folder / name).is_dir()",
        "os.path.lexists(path)",
        "from os.path import isfile",
        "any(map(Path.exists, paths))",
        "next(filter(os.path.isdir, paths))",
        "entry.is_dir()",
        "path.is_mount() or path.is_symlink()",
    ],
)
def test_the_guard_sees_each_spelling(tmp_path: Path, line: str) -> None:
    (tmp_path / "it.py").write_text(line)

    assert list(looks(tmp_path / "it.py"))


@pytest.mark.parametrize(
    "line",
    [
        "folders.exists(path)",
        "is_file(path, as_absent)",
        "entry.is_dir(follow_symlinks=False)",
        "entry.is_symlink()",
        "tracing.exists()",
    ],
)
def test_the_guard_takes_what_tells_the_two_apart(tmp_path: Path, line: str) -> None:
    (tmp_path / "it.py").write_text(line)

    assert list(looks(tmp_path / "it.py")) == []


# The folders that read what a job left, and may meet a FIFO or a file without an end there.
READERS = ("commands/jobs/", "commands/report/", "diagnosis/", "series/", "traces/", "metrics/")
READS = {
    "commands/jobs/stored.py": "makes a new file",
    "commands/jobs/secrets.py": "a file beside the job, which must be no link either",
    "commands/report/html/page.py": "the toolkit's own parts of pages",
    "series/findings.py": "appends; a FIFO there never waits",
    "series/blocks.py": "makes a new file",
    "series/debugger_writer.py": "the file that this monitor has just made",
    "metrics/file.py": "appends; a FIFO there never waits",
    "traces/merging.py": "makes a new file",
}


def test_what_a_job_left_is_read_in_one_place() -> None:
    reading = {
        place
        for place, path in layers.places(PACKAGE).items()
        if place.startswith(READERS)
        for name in names_of_calls(path)
        if name == "open" or name.endswith((".open", ".read_bytes", ".read_text"))
    }

    assert sorted(reading - set(READS)) == [], "use read or opened of toolkit/files.py, or give the reason in READS"
    assert sorted(set(READS) - reading) == []


def test_the_distributions_list_no_folders() -> None:
    files = sorted((PACKAGE.parent / "distributions").rglob("*.py"))

    assert files
    assert [path.name for path in files for _, name in calls(path) if name in LISTING] == []


def test_a_reader_that_bears_what_is_no_document_bears_all_of_it() -> None:
    """msgspec raises DecodeError, UnicodeDecodeError (a ValueError), and RecursionError for what is nested deeply."""
    handled = [
        (place, ast.unparse(node.type))
        for place, path in layers.places(PACKAGE).items()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ExceptHandler) and node.type is not None
    ]
    decoding = [(place, kinds) for place, kinds in handled if "msgspec.DecodeError" in kinds]

    assert decoding
    assert [place for place, kinds in decoding if "RecursionError" not in kinds] == []
    assert [place for place, kinds in decoding if "UnicodeDecodeError" not in kinds and "ValueError" not in kinds] == []
