"""A missing private name is reported once, and turns a feature off."""

import subprocess
import sys
from types import ModuleType

import pytest

from toolkit.rank.frameworks import private_names
from toolkit.rank.frameworks.private_names import MissingNameError, find_name, find_or_report, require_name

FRAMEWORKS = ("torch", "tensorflow", "keras", "transformers", "jax", "torch_xla", "mpi4py")


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a framework, imported, of version 3.1, with the private name _C._count alone."""
    module = ModuleType("lantern")
    vars(module).update(__version__="3.1", _C=ModuleType("_C"))
    vars(vars(module)["_C"])["_count"] = len
    monkeypatch.setitem(sys.modules, "lantern", module)
    private_names.report_missing.cache_clear()
    for name in private_names.RANKS:
        monkeypatch.delenv(name, raising=False)
    return module


def test_a_name_is_found_along_its_path(framework: ModuleType) -> None:
    assert find_name(framework, "_C._count") is len
    assert require_name(framework, "_C._count") is len
    assert find_name(framework, "_C._other._count") is None


def test_a_missing_name_is_reported_once(framework: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    values = [find_or_report(framework, "_C._gone", "steps are not counted") for _ in range(2)]

    assert values == [None, None]
    assert capsys.readouterr().err == "[toolkit] lantern 3.1 has no _C._gone: steps are not counted\n"


@pytest.mark.parametrize("variable", private_names.RANKS)
def test_the_first_rank_alone_reports(
    framework: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")

    assert find_or_report(framework, "_C._gone", "steps are not counted") is None
    assert capsys.readouterr().err == ""


def test_a_required_name_raises_for_whoever_attaches_the_feature(framework: ModuleType) -> None:
    with pytest.raises(MissingNameError, match=r"^lantern 3\.1 has no _C\._gone$"):
        require_name(framework, "_C._gone")


FENCE = "jax keras mpi4py private_names tensorflow torch torch.profiler torch_xla transformers"


@pytest.mark.parametrize("module", FENCE.split())
def test_importing_the_fence_imports_no_framework(module: str) -> None:
    program = "import sys, toolkit.rank.frameworks.%s; print(*sorted({%s} & sys.modules.keys()))"
    argv = [sys.executable, "-c", program % (module, ", ".join(map(repr, FRAMEWORKS)))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
