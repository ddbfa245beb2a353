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
