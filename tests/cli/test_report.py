"""toolkit report as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.jobs.folders import failed, report, simulated


def toolkit_report(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "report", *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={"PATH": "/usr/bin:/bin", **variables},
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return simulated(tmp_path / "job", report(), {"algo-1": failed("algo-2"), "algo-2": failed("algo-2")}, "a line\n")


def test_text_comes_on_standard_output(job: Path) -> None:
    completed = toolkit_report(job, "--format", "text")

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith("digits: FAILED\nRank 1 of host algo-2, 10.0 s after the start: ValueError")


def test_the_page_is_written_into_the_folder_and_the_cause_is_printed(job: Path) -> None:
    completed = toolkit_report(job)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.splitlines() == [
        "digits: FAILED",
        "Rank 1 of host algo-2, 10.0 s after the start: ValueError: loss is nan (at train.py:5 in step).",
        str(job / "report.html"),
    ]
    assert "ValueError: loss is nan" in (job / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "begins"),
    [("r.html", "<!"), ("r.txt", "digits: FAILED"), ("r.md", "# digits: failed"), ("r.json", "{"), ("r", "<!")],
)
def test_the_ending_of_the_file_decides_the_format(job: Path, tmp_path: Path, name: str, begins: str) -> None:
    completed = toolkit_report(job, "-o", tmp_path / name)

    assert (completed.returncode, completed.stderr) == (0, "")
    assert (tmp_path / name).read_text().startswith(begins)


def test_the_format_may_be_named_and_json_goes_to_a_pipe(job: Path) -> None:
    completed = toolkit_report(job, "--format", "json", "-o", "-")

    assert json.loads(completed.stdout)["status"] == "failed"


def test_a_console_without_utf_8_gets_ascii(job: Path) -> None:
    completed = toolkit_report(job, "-o", "-", PYTHONIOENCODING="ascii")

    assert completed.returncode == 0 and completed.stdout.isascii()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing"], "expected the name of a job or its folder, found 'missing'"),
        ([".", "--price", "cheap"], "expected a price"),
        ([".", "--format", "pdf"], "expected one of"),
        ([".", "-o", "report.pdf"], "'report.pdf'. For another ending, add --format"),
        ([".", "-o", "docs"], "-o: expected a file, found a folder, docs"),
    ],
)
def test_what_cannot_be_reported_is_an_error_that_says_why(words: list[str], message: str) -> None:
    completed = toolkit_report(*words)

    assert completed.returncode == 78
    assert message in completed.stderr and "Traceback" not in completed.stderr


def test_a_file_that_cannot_be_written_is_named_and_leaves_no_part(job: Path, tmp_path: Path) -> None:
    completed = toolkit_report(job, "-o", tmp_path / "no/page.md")

    assert completed.returncode == 78
    assert f"{tmp_path}/no/page.md: it cannot be written (No such file or directory)." in completed.stderr
    assert "Traceback" not in completed.stderr and not (tmp_path / "no").exists()


def test_standard_output_that_takes_nothing_is_one_sentence(job: Path) -> None:
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "toolkit.cli.main", "report", job, "-o", "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
        )

    assert completed.returncode == 75
    assert completed.stderr.strip() == "[toolkit] error: standard output cannot be written (No space left on device)"
