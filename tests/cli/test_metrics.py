import json
import subprocess
import sys
from pathlib import Path

import pytest

LOG = """Loading sentences
{'loss': 3.2712, 'learning_rate': 4.5e-05, 'epoch': 0.33, 'step': 500}
 33%|###3      | 500/1500 [01:12<02:24,  6.93it/s]
{'loss': 2.9013, 'learning_rate': 2.25e-05, 'epoch': 0.67, 'step': 1000}
{'loss': nan, 'learning_rate': 0.0, 'epoch': 1.0, 'step': 1500}
"""


def attempt(*words: str, log: str = "-", stdin: str = LOG) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "metrics", "try", log, *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_definition_shows_count_range_and_examples(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(LOG)

    done = attempt("--metric", "loss='loss': ([0-9.]+|nan)", "--metric", r"step='step': (\d+)", log=str(path))

    assert (done.returncode, done.stderr) == (0, "")
    assert "3 values from 5 lines: first 3.2712, last nan, min 2.9013, max 3.2712" in done.stdout
    assert "1 of them nan" in done.stdout
    assert "at steps 500 to 1500" in done.stdout
    assert "line 2      3.2712       {'loss': 3.2712" in done.stdout


def test_of_a_progress_bars_line_the_last_state_counts_as_in_a_job(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"\r 10%|# | [loss=3]\r 50%|##| [loss=2]\r100%|##| [loss=1]\nloss=9\r\n")

    done = attempt("--metric", "loss=loss=([0-9.]+)", log=str(path))

    assert "2 values from 2 lines: first 1, last 9, min 1, max 9" in done.stdout


def test_for_the_quoted_numbers_of_transformers_5_there_is_a_regex_to_copy() -> None:
    log = "{'loss': '4.318', 'learning_rate': '8.333e-06', 'epoch': '0.75'}\n"

    done = attempt("--metric", "lr='learning_rate': ([0-9.]*)", stdin=log)

    assert done.returncode == 1 and "transformers 5, whose Trainer puts numbers in quotes" in " ".join(
        done.stdout.split()
    )
    better = next(line for line in done.stdout.splitlines() if "for transformers 4 and 5: " in line).partition(": ")[2]
    again = attempt("--metric", f"lr={better}", stdin=log)
    assert again.returncode == 0 and "1 value from 1 line: first 8.333e-06" in again.stdout
    assert "transformers" not in again.stdout


def test_a_definition_that_captures_nothing_is_seen_in_the_status() -> None:
    done = attempt("--metric", r"loss='loss': (\S+),", "--metric", r"acc=accuracy=(\S+)")

    assert done.returncode == 1
    assert "acc: accuracy=(\\S+)\n  nothing captured from 5 lines" in done.stdout


def test_a_misread_value_is_warned_of_with_a_regex_to_copy() -> None:
    done = attempt("--metric", "lr='learning_rate': ([0-9.]*)", "--metric", "loss='loss': ([0-9.]*)")

    assert "warning: it reads 4.5e-05 as 4.5" in done.stdout
    assert "\n    better: 'learning_rate': ([-+]?(?:" in done.stdout
    assert "1 match held no number; the first: {'loss': nan" in done.stdout


def test_it_reads_at_eighty_columns_but_for_what_is_to_be_copied() -> None:
    done = attempt("--metric", "learning_rate='learning_rate': ([0-9.]*)", "--metric", r"x=(\S+)it/s")

    assert [line for line in done.stdout.splitlines() if len(line) > 80 and "better: " not in line] == []


@pytest.mark.parametrize(
    "document",
    [[{"Name": "loss", "Regex": "'loss': ([0-9.]+)"}], {"loss": "'loss': ([0-9.]+)"}],
    ids=["list", "object"],
)
def test_definitions_come_from_a_file_too(tmp_path: Path, document: object) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(document))

    done = attempt("--definitions", str(path))

    assert done.returncode == 0
    assert "2 values from 5 lines" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "loss=loss=([0-9.]+"), "--metric: metric 'loss': expected a regular expression"),
        (("--metric", "loss"), "--metric: expected NAME=REGEX, found 'loss'"),
        ((), "expected at least one definition"),
        (("--definitions", "/nowhere.json"), "/nowhere.json: expected a file, found nothing. Correct the path."),
    ],
)
def test_a_definition_that_cannot_be_used_ends_with_78(words: tuple[str, ...], message: str) -> None:
    done = attempt(*words)

    assert done.returncode == 78
    assert message in done.stderr


def test_a_definitions_file_that_is_no_json_ends_with_78(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("{")

    done = attempt("--definitions", str(path))

    assert done.returncode == 78
    assert f"{path}: expected JSON" in done.stderr


def test_a_log_that_is_not_there_ends_with_78() -> None:
    done = attempt("--metric", "a=(b)", log="/nowhere.log")

    assert done.returncode == 78
    assert "/nowhere.log: expected a file, found nothing. Correct the path." in done.stderr


def test_a_regex_without_end_does_not_hang_it() -> None:
    done = attempt("--metric", "a=x(a+)+b([0-9])", "--metric", "b=v=([0-9])", stdin="x" + "a" * 60 + "\nxab1 v=1\n" * 2)

    assert done.returncode in (0, 1)
    assert "'a' is switched off" in done.stderr
    assert "2 values from 4 lines" in done.stdout


def test_colours_and_carriage_returns_do_not_reach_the_terminal() -> None:
    done = attempt("--metric", "a=a=([0-9])", stdin="\x1b[31ma=1\x1b[0m\r\n")

    assert "\x1b" not in done.stdout
    assert "1 value from 1 line" in done.stdout
