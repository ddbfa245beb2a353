import re
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.train.log_rules.document import EXPECTED

PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text()
RULES = """
[[rules]]
name = "steps go on"
pattern = 'step=\\d+'
expected_start_within_s = 60
expected_again_every_s = 300
stop_pattern = "Training is over"
action = "stop"
message = "Look at the stacks."

[[rules]]
name = "throughput"
pattern = 'speed: ([0-9.]+)'
threshold = 80
operator = "lt"
data_points = 2

[[rules]]
name = "memory"
pattern = "ECC"
action = "label"
"""
HEALTHY = """2026-11-20T10:00:00Z loading
2026-11-20T10:00:41Z [algo-1 rank 0] step=1 speed: 91.2
2026-11-20T10:01:00Z [algo-1 rank 1] ECC error
2026-11-20T10:01:19Z [algo-1 rank 0] step=2 speed: 61.5
2026-11-20T10:01:39Z [algo-1 rank 0] step=3 speed: 60.9
2026-11-20T10:02:20Z Training is over
2026-11-20T10:20:00Z uploading
"""
HUNG = HEALTHY.replace("T10:02:20Z Training is over", "T10:07:20Z step=4")


def attempt(tmp_path: Path, log: str, *words: str, rules: str = RULES) -> subprocess.CompletedProcess[str]:
    (tmp_path / "rules.toml").write_text(rules)
    (tmp_path / "job.log").write_text(log)
    return subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "rules", "try", "job.log", "--rules", "rules.toml", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


def without_times(log: str) -> str:
    return "".join(line.partition(" ")[2] for line in log.splitlines(keepends=True))


def test_events_come_with_line_time_and_rank_and_each_rule_is_summed_up(tmp_path: Path) -> None:
    done = attempt(tmp_path, HEALTHY)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "line 3, 0:01:00, rank 1: memory: matched (label)\n"
        "    ECC error\n"
        "line 5, 0:01:39, rank 0: throughput: threshold (warn): 60.9 < 80, 2 in a row\n"
        "    step=3 speed: 60.9\n"
        "7 lines, 0:20:00\n"
        "  steps go on: 3 lines matched; 0 events; asleep at the end, by its stop_pattern\n"
        "  throughput: 3 lines matched; 1 event\n"
        "  memory: 1 line matched; 1 event\n"
    )


def test_an_event_that_ends_a_job_is_seen_in_the_status(tmp_path: Path) -> None:
    done = attempt(tmp_path, HUNG)

    assert done.returncode == 1
    assert (
        "line 6, 0:06:39: steps go on: late again (stop)\n    no line matched for 300 s\n    Look at the stacks.\n"
    ) in done.stdout
    assert done.stdout.endswith("steps go on would have ended the job at line 6 (stop)\n")


def test_without_times_the_checks_of_time_are_said_to_be_untried(tmp_path: Path) -> None:
    done = attempt(tmp_path, without_times(HUNG))

    assert done.returncode == 0
    assert "untried, as no line has a time:" in done.stdout
    assert "line 5, rank 0: throughput: threshold" in done.stdout
    assert "7 lines, no times" in done.stdout


def test_a_speed_gives_a_log_without_times_its_times(tmp_path: Path) -> None:
    done = attempt(tmp_path, without_times(HUNG), "--speed", "0.01")

    assert done.returncode == 1
    assert "line 2, 0:01:00: steps go on: late start (stop)" in done.stdout
    assert "7 lines, 0:10:00" in done.stdout


def test_the_times_of_a_log_win_over_a_speed(tmp_path: Path) -> None:
    done = attempt(tmp_path, HEALTHY, "--speed", "0.001")

    assert done.returncode == 0
    assert "7 lines, 0:20:00" in done.stdout


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("[[rules]]\nname = 'x'\npattern = '('\n", "rules.toml: rule 'x': pattern: expected a regular expression"),
        ("[[rules]]\nname = 'x'\npatern = 'a'\n", "found 'patern'. Did you mean pattern?"),
        ("", "rules.toml: expected at least one rule, found none"),
    ],
)
def test_a_bad_document_ends_with_78(tmp_path: Path, rules: str, message: str) -> None:
    done = attempt(tmp_path, HEALTHY, rules=rules)

    assert done.returncode == 78
    assert message in done.stderr


@pytest.mark.parametrize(
    "words", [("try", "nowhere.log", "--rules", "r.json"), ("try", "r.json", "--rules", "no.json")]
)
def test_a_file_that_is_not_there_ends_with_78(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "r.json").write_text('[{"name": "x", "pattern": "x"}]')

    done = subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "rules", *words], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 78
    assert "expected a file, found nothing. Correct the path." in done.stderr


@pytest.mark.parametrize("word", ["0", "-1", "fast", "nan", "inf"])
def test_a_speed_that_is_none_is_refused(tmp_path: Path, word: str) -> None:
    done = attempt(tmp_path, HEALTHY, f"--speed={word}")

    assert done.returncode == 78
    assert "expected lines a second, a number above 0" in done.stderr


def test_it_reads_at_eighty_columns_and_shows_no_control_characters(tmp_path: Path) -> None:
    line = "\x1b[31mECC " + "long " * 40 + "\r\n"

    done = attempt(tmp_path, line * 2)

    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_regex_without_end_does_not_hang_it(tmp_path: Path) -> None:
    rules = "[[rules]]\nname = 'endless'\npattern = 'x(a+)+b'\n[[rules]]\nname = 'fine'\npattern = 'ECC'\n"

    done = attempt(tmp_path, "x" + "a" * 60 + "\nECC\n", rules=rules)

    assert "rule 'endless' is switched off" in done.stderr
    assert "endless: 0 lines matched; 0 events; switched off: its regex takes too long" in done.stdout
    assert "fine: 1 line matched; 1 event" in done.stdout


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    rules, log, printed, *_ = re.findall(r"^```(?:toml)?\n(.*?)^```", PAGE, re.M | re.S)

    done = attempt(tmp_path, log, rules=rules)

    assert done.stdout == printed


def test_the_page_has_a_row_for_every_key() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Keys")[2].partition("##")[0], re.M)

    assert sorted(rows) == sorted(EXPECTED)
