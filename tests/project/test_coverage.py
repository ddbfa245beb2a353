"""scripts/coverage: its list of pure files, and its table."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from tests.project.test_repository import ROOT


def script() -> ModuleType:
    loader = SourceFileLoader("measured", str(ROOT / "scripts/coverage"))
    spec = spec_from_loader("measured", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


SCRIPT = script()


@pytest.mark.parametrize("pattern", [pattern for braced in SCRIPT.PURE for pattern in SCRIPT.expand(braced)])
def test_every_pattern_of_pure_files_has_a_file(pattern: str) -> None:
    assert list(ROOT.glob(pattern))


@pytest.mark.parametrize("path", SCRIPT.PURE_TESTS)
def test_the_tests_of_pure_files_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_table_has_a_row_for_each_package_and_rounds_nothing_up_to_all() -> None:
    counts = {
        "toolkit/exit_codes.py": SCRIPT.Count(lines=3, lines_run=3),
        "toolkit/train/verdict/tail.py": SCRIPT.Count(lines=2000, lines_run=1999, branches=4, branches_run=1),
        "toolkit/train/verdict/mpi.py": SCRIPT.Count(lines=1000, lines_run=1000),
    }

    assert SCRIPT.make_table(counts).splitlines() == [
        "| (top) | 3 | 100 % | 0 | - |",
        "| train/verdict | 3,000 | 99.9 % | 4 | 25 % |",
        "| all | 3,003 | 99.9 % | 4 | 25 % |",
    ]
