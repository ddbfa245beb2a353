"""The pages' sections on compilers: the section of a job, and the one of `toolkit compare`."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.commands.jobs.folders import START_S, report, simulated
from toolkit.commands import jobs
from toolkit.commands.report.compare.measured import measure_job
from toolkit.commands.report.compare.page import build_page as build_comparison
from toolkit.commands.report.html.page import render as html
from toolkit.commands.report.markdown import write_markdown
from toolkit.commands.report.model import Page, Table
from toolkit.commands.report.sections.page import build_page
from toolkit.commands.report.text import TextWriter
from toolkit.job.compilation import Compilation, Recompilation, Trial
from toolkit.job.outcome import Outcome

KEPT = Compilation(
    framework="torch",
    compile="auto",
    state="compiled",
    reason="a step took 19.7 ms compiled, 25.0 ms eager (8 pairs).",
    modules=("GPT2LMHeadModel",),
    compile_s=21.5,
    compilations=9,
    graphs=2,
    graph_breaks=1,
    recompilations=(
        Recompilation(function="GPT2Model", reason="tensor 'x' size mismatch: expected 32, actual 24", count=8),
    ),
    trial=Trial(pairs=8, eager_step_ms=25.0, candidate_step_ms=20.0, kept=True, cost_s=22.0),
    steps=400,
    steady_step_ms=19.5,
    break_even_step=210,
    cache="/opt/ml/checkpoints/compile-cache/torch-2.13",
)
EAGER = Compilation(framework="torch", compile="auto", state="eager", reason="it is no faster.", steps=300)


def job(folder: Path, **hosts: "Compilation | None") -> Path:
    outcomes: dict[str, Outcome | None] = {
        name.replace("_", "-"): Outcome(status="succeeded", exit_code=0, compiler=did) for name, did in hosts.items()
    }
    simulated(folder, report(), outcomes, "x\n")
    return folder


def page(folder: Path) -> Page:
    return build_page(jobs.read(folder), now_s=START_S + 100)


def text(report: Page) -> str:
    return " ".join(TextWriter(width=200).page(report).split())


def test_the_section_has_the_decision_the_trial_and_what_was_compiled_again(tmp_path: Path) -> None:
    report = page(job(tmp_path / "job", algo_1=KEPT, algo_2=KEPT))

    report_text = text(report)
    assert (
        report_text.count("Compiler: compiled: a step took 19.7 ms compiled, 25.0 ms eager (8 pairs).") == 1
    )  # One for both.
    assert "expected 32, actual 24" in report_text
    assert "drop_last=True" in report_text  # Eight recompilations are many.
    assert "Compiled code is kept in: /opt/ml/checkpoints/compile-cache/torch-2.13" in report_text
    tables = {block.id: block for section in report.sections for block in section.blocks if isinstance(block, Table)}
    columns = [column.name for column in tables["compiler-hosts"].columns]
    row = dict(zip(columns, tables["compiler-hosts"].rows[1], strict=True))
    assert (row["host"], row["compilations"], row["graphs"], row["recompilations"]) == ("algo-2", 9, 2, 8)
    assert "cache hits" not in row  # Nobody counted them.
    assert tables["compiler-times"].rows[1] == ("algo-2", 21.5, 400, 19.5, 210)
    assert tables["compiler-trials"].rows[0][2:] == (8, 25.0, 20.0, 1.25, "yes", 22.0)


@pytest.mark.parametrize("shape", [html, write_markdown, lambda report: msgspec.json.encode(report).decode()])
def test_every_shape_of_the_page_has_the_section(tmp_path: Path, shape: Callable[[Page], str]) -> None:
    rendered = shape(page(job(tmp_path / "job", algo_1=KEPT)))

    assert "19.7 ms compiled" in rendered
    assert "compiler-hosts" in rendered or "What was compiled" in rendered


def test_hosts_that_decided_differently_are_named(tmp_path: Path) -> None:
    report_text = text(page(job(tmp_path / "job", algo_1=KEPT, algo_2=EAGER)))

    assert "Compiler: algo-1: compiled:" in report_text
    assert "Compiler: algo-2: not compiled: it is no faster." in report_text


def test_a_job_that_asked_for_no_compiler_has_no_section(tmp_path: Path) -> None:
    report = page(job(tmp_path / "job", algo_1=None))

    assert "compiler" not in [section.id for section in report.sections]


def test_bfloat16_has_its_own_decision(tmp_path: Path) -> None:
    trial = Trial(pairs=4, eager_step_ms=200.0, candidate_step_ms=100.0, kept=True, cost_s=0.4)
    did = Compilation(
        framework="torch",
        autocast="auto",
        autocast_state="bf16",
        autocast_reason="100 ms, not 200.",
        autocast_trial=trial,
    )

    report_text = text(page(job(tmp_path / "job", algo_1=did)))

    assert "Compiler: off" in report_text
    assert "Autocast: bfloat16: 100 ms, not 200." in report_text
    assert "algo-1 bfloat16 4 200 100 2 yes 0.4" in report_text


def test_compare_sets_the_compilers_side_by_side_and_says_what_makes_the_savings_untrue(tmp_path: Path) -> None:
    folders = [
        job(tmp_path / "native", algo_1=KEPT),
        job(tmp_path / "one", algo_1=EAGER),
        job(tmp_path / "other", algo_1=None),
    ]
    measured = [measure_job(jobs.read(section), section.name, now_s=0.0, epochs=None, gpus=None) for section in folders]

    report = build_comparison(measured, now_s=START_S)

    report_text = text(report)
    assert "native was compiled itself" in report_text
    assert "one ran without the compiler at its end" in report_text
    assert "other: no compiler was asked for." in report_text
    table = next(
        block for section in report.sections for block in section.blocks if getattr(block, "id", "") == "compilers"
    )
    rows = {row[0]: row[1:] for row in table.rows}  # type: ignore[union-attr]
    assert rows["at the end"] == ("compiled", "eager", None)
    assert rows["steady step, ms"] == (19.5, None, None)


def test_compare_without_compilers_has_no_section(tmp_path: Path) -> None:
    folders = [job(tmp_path / "native", algo_1=None), job(tmp_path / "other", algo_1=None)]
    measured = [measure_job(jobs.read(section), section.name, now_s=0.0, epochs=None, gpus=None) for section in folders]

    assert "compilers" not in [section.id for section in build_comparison(measured, now_s=START_S).sections]
