"""Layers import lower layers only, and importing does nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import layers
from toolkit import settings

PACKAGE = Path(__file__).parents[2] / "toolkit"

# What a module could have done by being imported, before and after all of them were.
WITNESS = """
import json, os, signal, sys, threading

def state():
    return {
        "environ": dict(os.environ),
        "threads": threading.active_count(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "folder": os.getcwd(),
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "path": list(sys.path),
        "hooks": [str(sys.excepthook), str(sys.stdout), str(sys.stderr)],
        "children": os.path.exists("/proc/self/task/%d/children" % os.getpid())
        and open("/proc/self/task/%d/children" % os.getpid()).read(),
        "umask": os.umask(0o22),
    }

before = state()
before = state()  # The first call may itself import.
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
after = state()
print(json.dumps({key: [before[key], after[key]] for key in before if before[key] != after[key]}))
"""


def module_names() -> list[str]:
    """Return every module of the package but __main__ (its import is its run) and folders that are no packages."""
    names = []
    for place in layers.places(PACKAGE):
        parts = place.removesuffix(".py").split("/")
        if parts[-1] != "__main__" and all(
            (PACKAGE / Path(*parts[:n]) / "__init__.py").exists() for n in range(len(parts))
        ):
            names.append(".".join(["toolkit", *parts]).removesuffix(".__init__"))
    return names


def test_every_import_leads_to_a_lower_layer_or_stays_in_its_room() -> None:
    assert layers.faults(PACKAGE) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("(?<![a-z.])sagemaker_(?!training)[a-z]", id="parameters"),
        pytest.param("SAGEMAKER_[A-Z]", id="variables"),
    ],
)
def test_the_names_of_sagemaker_are_in_one_package_alone(name: str) -> None:
    """sagemaker_program, SAGEMAKER_PROGRAM: elsewhere a job is a JobSpec, wherever it was written. "SAGEMAKER_*" in a
    text for people names none."""
    wrong = [
        f"{place}:{line}: {text!r}"
        for place, path in layers.places(PACKAGE).items()
        if not place.startswith(("job/documents/", "train/platforms/sagemaker/"))
        for line, text in layers.texts(path)
        if re.search(name, text)
    ]

    assert wrong == []


def test_settings_are_read_in_one_file_alone() -> None:
    """Elsewhere nobody asks the environment for them by name. The script side has nothing but the environment, and
    `toolkit run` makes that of a `train`."""
    variables = {settings.PREFIX + field.upper() for field in settings.Settings.__struct_fields__}
    wrong = [
        f"{place}:{line}: {name}"
        for place, path in layers.places(PACKAGE).items()
        if layers.package_of(place) not in (layers.RANK, "status", "settings")
        and not place.startswith("commands/simulate/")
        for line, name in layers.keys_read(path)
        if name in variables
    ]

    assert wrong == []


def test_no_module_keeps_state_that_can_change() -> None:
    wrong = {place: layers.mutable_state(path) for place, path in layers.places(PACKAGE).items()}

    assert {place: lines for place, lines in wrong.items() if lines} == {}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    # A file where a folder would be: whoever creates something there on import is found out by the error.
    environ = {"PATH": os.environ["PATH"], "HOME": "/dev/null", "SAGEMAKER_BASE_DIR": str(tmp_path / "base"), "X": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITNESS, *module_names()],
        env={**environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {}
    assert list(tmp_path.iterdir()) == []


def test_all_modules_are_seen() -> None:
    assert {"toolkit", "toolkit.errors", "toolkit.job.plan", "toolkit.cli"} <= set(module_names())


# The checker itself, on small packages.


def package_with(folder: Path, **files: str) -> Path:
    """Write a package `toolkit` into *folder*: `job__plan="import os"` is job/plan.py."""
    package = folder / "toolkit"
    for name, text in files.items():
        path = package / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.parents[: len(path.relative_to(package).parts)]:
            (parent / "__init__.py").touch()
    return package


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import toolkit.cli.main", "it is in a higher layer"),
        ("from toolkit.cli import main", "it is in a higher layer"),
        ("from toolkit.cli.main import run", "it is in a higher layer"),
        ("from ...cli.main import run", "it is in a higher layer"),
        ("from ... import commands", "it is in a higher layer"),
        ("def late():\n    from toolkit.commands import run", "it is in a higher layer"),
        ("import typing\nif typing.TYPE_CHECKING:\n    import toolkit.commands", "it is in a higher layer"),
        ("import toolkit.train.probe.look", "the folders of train/ do not import each other"),
        ("import toolkit.monitor.sampler", "train/ and monitor/ are processes of their own"),
        ("import toolkit.rank.hook.site", "nothing imports rank/: its code runs in a rank's interpreter"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, text: str, reason: str) -> None:
    others = ("cli__main", "commands__run", "monitor__sampler", "rank__hook__site", "train__probe__look")
    package = package_with(tmp_path, train__launchers__table=text, **dict.fromkeys(others, ""))

    wrong = layers.faults(package)

    assert len(wrong) >= 1
    assert all(line.startswith("train/launchers/table.py:") and line.endswith(reason) for line in wrong)


@pytest.mark.parametrize(
    "text",
    [
        "import toolkit.errors",
        "from toolkit import records",
        "from toolkit.job.plan import Plan",
        "import toolkit.train.launchers.script",
        "from . import script",
        "from .script import plan",
        "import toolkits.cli, os.path",
    ],
)
def test_a_right_import_is_no_fault(tmp_path: Path, text: str) -> None:
    others = ("train__launchers__script", "job__plan", "errors", "records")
    package = package_with(tmp_path, train__launchers__table=text, **dict.fromkeys(others, ""))

    assert layers.faults(package) == []


def test_the_code_of_a_rank_knows_only_what_is_shared_and_light(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        rank__hook__site="import toolkit.errors, toolkit.rank.mesh.host\nimport toolkit.settings",
        rank__profiler__spans="import toolkit.rank.hook.site",
        rank__compat__smp="import toolkit.rank.hook.site",
        rank__mesh__host="",
        errors="",
        records="",
        settings="",
    )

    may_import = "errors, records, folders, paths, status_pages, parallelism"
    assert layers.faults(package) == [
        f"rank/hook/site.py:2: imports settings.py: rank/ knows only {may_import}",
        "rank/profiler/spans.py:1: imports rank/hook/site.py: the folders of rank/ do not import each other",
    ]


def test_a_circle_within_a_package_is_found(tmp_path: Path) -> None:
    package = package_with(
        tmp_path,
        job__a="import toolkit.job.b",
        job__b="def late():\n    from toolkit.job import c",
        job__c="from . import a",
        job__d="import toolkit.job.a",
    )

    assert layers.faults(package) == ["circle: job/a.py -> job/b.py -> job/c.py -> job/a.py"]


def test_a_package_without_a_layer_is_found(tmp_path: Path) -> None:
    package = package_with(tmp_path, attic__box="")

    assert layers.faults(package) == ["attic: no layer is known for this folder; add it to tests/project/layers.py"]


def test_state_that_can_change_is_found(tmp_path: Path) -> None:
    package = package_with(
        tmp_path, job__a="TABLE = {}\n__all__ = []\nseen = set()\ncache: dict[str, int] = {}\nFEW = (1,)\n"
    )

    assert layers.mutable_state(package / "job/a.py") == ["line 3: seen", "line 4: cache"]


def test_texts_and_keys_are_found_and_docstrings_are_none(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        '"""Doc."""\ndef f(e):\n    "Doc."\n    return e.get("A"), e["B"], "C" in e, e.pop("D", f"x{e}y")\n'
    )

    assert sorted(text for _, text in layers.texts(file)) == ["A", "B", "C", "D", "x", "y"]
    assert sorted(name for _, name in layers.keys_read(file)) == ["A", "B", "C", "D"]


def test_an_import_that_does_something_is_found(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("import os\nos.environ['LOUD'] = '1'\n")
    done = subprocess.run(
        [sys.executable, "-c", WITNESS, "loud"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=True
    )

    assert list(json.loads(done.stdout)) == ["environ"]
