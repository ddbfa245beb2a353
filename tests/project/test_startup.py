"""`train` starts light: what it must not import before the user's first line runs."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.train.base import Base

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
    "toolkit.commands.simulate",
    "toolkit.commands.report",
    "toolkit.monitor",
)


# What only some jobs need, or a job's end: none of it is there when `train` starts the script of a job on one host.
LATER = (
    "array",
    "bz2",
    "importlib.util",
    "lzma",
    "shlex",
    "shutil",
    "socket",
    "subprocess",
    "threading",
    "toolkit.job.file",
    "toolkit.metrics.capture",
    "toolkit.train.peers",
    "toolkit.train.log_rules",
    "toolkit.train.source.unpack",
    "toolkit.train.verdict",
)


def imported_by(statement: str, environ: Mapping[str, str] | None = None) -> set[str]:
    """Return what *statement* adds to sys.modules in an interpreter of its own."""
    program = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def heavy(name: str) -> bool:
    return any(name == heavy_module or name.startswith(heavy_module + ".") for heavy_module in HEAVY)


@pytest.mark.parametrize("module", ["toolkit.train.walk", "toolkit.cli.main"])
def test_train_imports_nothing_heavy(module: str) -> None:
    imported = imported_by(f"import {module}")

    assert {name for name in imported if heavy(name)} == set()


def test_a_whole_run_of_train_imports_nothing_heavy(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("print('loss=0.5')\n")
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    statement = (
        "import os; from toolkit.log import Log; from toolkit.train.walk import train; "
        "status = train(dict(os.environ), interpreter=sys.executable, log=Log()); assert status == 0"
    )

    imported = imported_by(statement, base.environ())

    assert (base.output / "metrics.jsonl").exists()
    assert {name for name in imported if heavy(name)} == set()


def test_what_only_some_jobs_need_is_not_imported_before_the_script_starts(tmp_path: Path) -> None:
    base = Base(tmp_path)
    base.program("print('on')\n")
    statement = (
        "import os; from toolkit.log import Log; from toolkit.train.supervise import children; there = {}; "
        "start = children.spawn; "
        "children.spawn = lambda *given, **named: there.update(sys.modules) or start(*given, **named); "
        "from toolkit.train.walk import train; train(dict(os.environ), interpreter=sys.executable, log=Log()); "
        "assert {'ctypes', 'toolkit.train.walk'} <= set(there); "
        f"assert not set(there) & set({LATER}), set(there) & set({LATER})"
    )

    assert "toolkit.train.verdict" in imported_by(statement, base.environ())


def test_a_heavy_import_would_be_seen() -> None:
    assert {"asyncio", "logging", "ssl"} <= imported_by("import asyncio")


def test_train_catches_signals_before_it_imports_anything_of_its_own() -> None:
    """These are the modules that start.py imports before its handlers are installed."""
    assert {name for name in imported_by("import toolkit.cli.start") if name.startswith("toolkit.")} == {
        "toolkit.cli",
        "toolkit.cli.outermost",
        "toolkit.cli.start",
    }
    imported = imported_by("from toolkit.cli import start, streams; from toolkit.train.supervise import signals")

    expected = {
        "toolkit",
        "toolkit.cli",
        "toolkit.cli.outermost",
        "toolkit.cli.start",
        "toolkit.cli.streams",
        "toolkit.train",
        "toolkit.train.supervise",
        "toolkit.train.supervise.signals",
    }
    assert {name for name in imported if name.startswith("toolkit")} == expected
    assert not imported & {"re", "typing", "msgspec", "pathlib", "importlib.util", "dataclasses"}
