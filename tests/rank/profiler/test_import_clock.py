"""The clock of imports in real interpreters, loaded by its path as the rank hook does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import toolkit

CLOCK = Path(toolkit.__file__).parent / "rank/profiler/import_clock.py"
LOADS = f"""
import sys
from importlib.machinery import SourceFileLoader
clock = type(sys)("clock")
SourceFileLoader("clock", {str(CLOCK)!r}).exec_module(clock)
clock.watch()
"""
TELLS = """
import json, sys, time
clock = sys._toolkit_import_clock
clock.stop()
described = clock.describe(time.monotonic_ns())
print(json.dumps(described))
"""


def run(folder: Path, script: str) -> dict[str, Any]:
    """Run *script* with the clock, and return what the clock tells at its end."""
    (folder / "script.py").write_text(LOADS + script + TELLS)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    start: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return start


def write_package(folder: Path, name: str, text: str) -> None:
    package = folder / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)


def test_a_slow_package_is_named_and_what_it_imports_counts_as_its_own(tmp_path: Path) -> None:
    write_package(tmp_path, "slow", "import time, inner\ntime.sleep(0.3)\n")
    write_package(tmp_path, "inner", "import time\ntime.sleep(0.2)\n")

    start = run(tmp_path, "sys.path.append('site-packages')\nimport slow\nimport slow\n")

    took_s = {package["name"]: package["took_s"] for package in start["packages"]}
    assert next(iter(took_s)) == "slow"
    assert took_s["slow"] >= 0.5
    assert "inner" not in took_s
    assert start["before_s"] >= start["imports_s"] >= took_s["slow"]
    assert start["packages"][0]["filesystem"]


def test_a_module_beside_the_script_is_looked_into(tmp_path: Path) -> None:
    write_package(tmp_path, "slow", "import time\ntime.sleep(0.2)\n")
    (tmp_path / "own.py").write_text("import time\nimport slow\ntime.sleep(0.1)\n")

    start = run(tmp_path, "sys.path.append('site-packages')\nimport own\n")

    names = {package["name"] for package in start["packages"]}
    assert "slow" in names
    assert "own" not in names


def test_an_import_that_fails_is_measured_and_raises_as_before(tmp_path: Path) -> None:
    write_package(tmp_path, "broken", "import time\ntime.sleep(0.1)\nraise ValueError('of the package')\n")
    script = """
import traceback
sys.path.append("site-packages")
for name in ("absent_package", "broken"):
    try:
        exec("import " + name)
    except (ModuleNotFoundError, ValueError) as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert not [file for file in frames if "import_clock" in file], frames
        assert getattr(error, "name", name) == name
"""

    start = run(tmp_path, script)

    assert {"absent_package", "broken"} <= {package["name"] for package in start["packages"]}


def test_a_warning_of_a_package_is_about_the_line_that_imports_it(tmp_path: Path) -> None:
    write_package(tmp_path, "old", "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n")
    script = """
import warnings
sys.path.append("site-packages")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import old
assert [warning.filename for warning in caught] == [__file__], caught
"""

    run(tmp_path, script)


def test_every_way_to_import_works_and_leaves_specs_as_they_are(tmp_path: Path) -> None:
    for name in ("first", "second", "third", "lazy", "known", "circular"):
        write_package(
            tmp_path, name, "import circular_part\n" if name == "circular" else "import time\ntime.sleep(0.02)\n"
        )
    (tmp_path / "site-packages/first/part.py").write_text("from . import __name__ as above\n")
    (tmp_path / "site-packages/circular_part.py").write_text("import circular\n")
    (tmp_path / "site-packages/space").mkdir()
    (tmp_path / "site-packages/space/module.py").write_text("import time\ntime.sleep(0.02)\n")
    script = """
import importlib, importlib.util, threading
from importlib.machinery import ModuleSpec
sys.path.append("site-packages")
import first, space.module, circular
import first.part
assert first.part.above == "first"
assert importlib.import_module("second") is sys.modules["second"]
third = importlib.util.find_spec("third")
assert isinstance(third, ModuleSpec) and repr(third).startswith("ModuleSpec(")
module = importlib.util.module_from_spec(third)
third.loader.exec_module(module)
spec = importlib.util.find_spec("lazy")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = sys.modules["lazy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.time.sleep
assert importlib.reload(first) is first
threads = [threading.Thread(target=importlib.import_module, args=("known",)) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
del sys.modules["second"]
import second


class Refusing:
    def find_spec(self, name, path, target=None):
        if name == "refused":
            raise ImportError("refused by a finder")


class Answering:
    def find_spec(self, name, path, target=None):
        if name == "alias":
            return importlib.util.find_spec("second")


sys.meta_path[:0] = [Refusing(), Answering()]
sys.meta_path.append(Refusing())
try:
    import refused
except ImportError as error:
    assert str(error) == "refused by a finder"
for name in ("first", "first.part", "second", "space", "space.module", "circular", "circular_part", "known"):
    assert type(sys.modules[name].__spec__) is ModuleSpec, name
    assert not getattr(sys.modules[name].__spec__, "_initializing", False), name
"""

    start = run(tmp_path, script)

    took_s = {package["name"]: package["took_s"] for package in start["packages"]}
    assert took_s["second"] >= 0.04
    assert took_s["space"] >= 0.02


def test_imports_after_the_first_step_and_those_of_other_threads_do_not_count(tmp_path: Path) -> None:
    write_package(tmp_path, "late", "")
    write_package(tmp_path, "aside", "")
    script = """
import threading, time
sys.path.append("site-packages")
thread = threading.Thread(target=lambda: __import__("aside"))
thread.start(), thread.join()
first_step_ns = time.monotonic_ns()
import late
names = {package["name"] for package in sys._toolkit_import_clock.describe(first_step_ns)["packages"]}
assert "threading" in names and not names & {"late", "aside"}, names
"""

    run(tmp_path, script)


def test_a_forked_child_knows_that_the_clock_is_its_parents(tmp_path: Path) -> None:
    script = """
import os
clock_of_parent = sys._toolkit_import_clock
assert clock_of_parent.is_of_this_process()
pid = os.fork()
if not pid:
    os._exit(clock_of_parent.is_of_this_process())
assert os.waitpid(pid, 0)[1] == 0
"""

    run(tmp_path, script)
