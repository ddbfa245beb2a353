"""The code that g++ makes of a model: two jobs share it."""

from pathlib import Path

import pytest

from tests.rank.compiler.ranks import NET, Ran, run
from tests.rank.profiler.ranks import needs_torch
from toolkit.job.compilation import Compilation
from toolkit.records import convert

SMALL = """
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(32, 32), nn.Linear(32, 10)
    def forward(self, x):
        return self.out(nn.functional.gelu(self.a(x)))
losses = train(Small(), 12)
print(losses[-1] < losses[0])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of both jobs."""
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def jobs(folder: Path) -> list[Ran]:
    """Run two jobs, one after the other."""
    return [run(folder, NET + SMALL, compile="on") for _ in range(2)]


@pytest.mark.long
@needs_torch
def test_a_model_is_compiled(jobs: list[Ran]) -> None:
    for ran in jobs:
        assert ran.stdout == ["True\n"], ran.stderr
        (facts,) = ran.facts
        assert (facts["state"], facts["modules"], facts["steps"]) == ("compiled", ["Small"], 12)
        assert facts["compilations"] >= 1 and facts["compile_s"] > 0 and facts["graphs"] == 1
        assert facts["steady_step_ms"] > 0 and not facts["recompilations"]
        assert len(ran.lines) == 1 and "compiled Small in" in ran.lines[0]
        convert(facts, Compilation, "facts")


@pytest.mark.long
@needs_torch
def test_the_next_job_finds_the_code(folder: Path, jobs: list[Ran]) -> None:
    first, second = (ran.facts[0] for ran in jobs)

    assert Path(first["cache"]).parent == folder / "cache"
    assert (first["cache_hits"], second["cache_hits"]) == (0, 1)
