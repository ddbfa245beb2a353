"""`train` starts light: what it must not import before the user's first line runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each costs milliseconds of CPU or starts threads, and nothing on the training path needs it before the script runs.
HEAVY = (
    "asyncio",
    "multiprocessing",
    "concurrent.futures",
    "argparse",  # `train` takes no options; the commands of `toolkit` import it when they run.
    "logging",  # toolkit.log is our one writer.
    "unittest",
    "xml",
    "http",
    "email",
    "ssl",
    "urllib.request",
    "tarfile",  # Only for a source that comes as an archive.
    "tempfile",
    "importlib.metadata",
    "pkg_resources",
    "setuptools",
    "pip",
    "numpy",
    "torch",
    "boto3",
    "botocore",
    "google.cloud",
    "azure",
    "rich",
    "psutil",
    "pytest",
    "toolkit.local",
    "toolkit.report",
    "toolkit.monitor",
)


def imported_by(statement: str) -> set[str]:
    """Return the names in sys.modules after *statement* ran in an interpreter of its own, without site's extras."""
    program = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["toolkit.train", "toolkit.cli.main"])
def test_train_imports_nothing_heavy(module: str) -> None:
    if not (ROOT / (module.replace(".", "/") + ".py")).exists():
        pytest.skip(f"{module} is not written yet")

    found = imported_by(f"import {module}")

    assert {name for name in found if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))} == set()


def test_a_heavy_import_would_be_seen() -> None:
    assert {"asyncio", "logging", "ssl"} <= imported_by("import asyncio")
