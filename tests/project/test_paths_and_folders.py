"""One place encodes paths of any bytes; one place walks folders that others write."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.project import layers

PACKAGE = Path(__file__).parents[2] / "toolkit"

# Files that encode JSON without `records.encode`, with the reason why no path of any bytes gets there.
ENCODES = {
    "records.py": "the one place",
    "metrics/file.py": "samples: names and numbers, encoded for every line",
    "series/sample_writer.py": "the monitor's own names of columns",
    "series/debugger_writer.py": "the monitor's own names of metrics",
    "report/document.py": "the schema",
    "parallelism/decision.py": "names of modules; on the base layer",
    "modelparallel/world.py": "the ranks' configuration, which came from JSON",
    "modelparallel/recorder.py": "names of modules and numbers",
    "modelparallel/tf/partitioned.py": "names of layers",
    "storage/mirror.py": "names that `paths.to_text` has encoded",
}


def calls(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for each call in *path*: "os.walk", or ".glob" for a method of a value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, ast.unparse(node.func)


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
    "status_pages.py": "the run's own folder in memory; without it no rank has a page",
    "probe/host.py": "/sys and /proc: what is not there is not measured",
    "probe/ranks.py": "/proc",
    "probe/port.py": "/proc",
    "supervise/kernel.py": "/proc",
    "monitor/processes.py": "/proc",
    "monitor/sources/traffic.py": "/sys",
    "monitor/steps.py": "the run's own folder, many times a second; an error ends nothing and is tried again",
    "local/containers.py": "/dev",
    "local/owners.py": "root's, by descriptors, so that no link is followed; what cannot be listed stays root's",
    "storage/scan.py": "/proc",
    "local/mounts.py": "a program of the standard library alone; an error ends it with the reason",
    "cli/docs.py": "the toolkit's own pages",
    "standalone/kubeflow_progress.py": "the run's own folder; beside the script, the standard library alone",
    "standalone/jax_rank.py": "/proc",
    "standalone/site/sitecustomize.py": "/proc",
    "profiler/tensorflow_window.py": "the folder that TensorFlow's profiler has just made for this window",
    "compiler/torch/dump.py": "how large the toolkit's own dump is; beside the script",
    "compiler/torch/budget.py": "/proc",
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


def test_the_distributions_list_no_folders() -> None:
    files = sorted((PACKAGE.parent / "distributions").rglob("*.py"))

    assert files
    assert [path.name for path in files for _, name in calls(path) if name in LISTING] == []
