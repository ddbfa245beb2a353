"""The search for the largest batch that fits: pure, and as `toolkit batch` on a job."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT
from tests.rank.profiler.ranks import needs_torch
from toolkit.commands.batch.search import largest, next_batch
from toolkit.commands.batch.tries import measure_memory
from toolkit.errors import UserError

# A script without a framework: its steps are heartbeats. It holds 1 MiB for each row of its batch, or half of that.
SCRIPT = """\
import argparse
from toolkit import status
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
parser.add_argument("--mode", default="whole")
given = parser.parse_args()
if given.mode == "broken":
    raise ValueError("no such column")
for step in range(1_000_000):
    held = bytearray((given.rows << 20) // (2 if given.mode == "half" else 1))
    status.heartbeat(step=step)
    del held
"""


def search(capacity: int, **more: int | float) -> tuple[int | None, list[int]]:
    """Return the result of a search where *capacity* fits and more does not, and the batches that were tried."""
    tried: dict[int, bool] = {}
    options = {"start": 8, "most": 65536, **more}
    while (batch := next_batch(tried, **options)) is not None:  # type: ignore[arg-type]
        assert batch not in tried
        tried[batch] = batch <= capacity
    return largest(tried), list(tried)


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 9, 100, 1000, 1024, 1152, 65535])
def test_without_tolerance_the_search_finds_the_very_largest(capacity: int) -> None:
    largest, tried = search(capacity, tolerance=0.0)

    assert largest == capacity
    assert len(tried) < 34


@pytest.mark.parametrize("capacity", [90, 1000, 1152, 30000])
def test_a_tolerance_ends_the_search_earlier_and_near_the_largest(capacity: int) -> None:
    largest, tried = search(capacity)

    assert largest is not None and 0.95 * capacity <= largest <= capacity
    assert len(tried) < len(search(capacity, tolerance=0.0)[1])


def test_only_multiples_are_tried_and_never_more_than_the_most() -> None:
    largest, tried = search(1000, multiple=64, start=64, tolerance=0.0)
    assert largest == 960
    assert all(batch % 64 == 0 for batch in tried)

    assert search(10**9, most=500) == (500, [8, 16, 32, 64, 128, 256, 500])


def test_nothing_fits_where_one_row_does_not() -> None:
    assert search(0)[0] is None


def test_what_cannot_be_searched_is_an_error() -> None:
    with pytest.raises(UserError, match="found start 9, most 8"):
        next_batch({}, start=9, most=8)


def test_memory_that_a_process_frees_during_the_look_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/smaps_rollup").write_text(
        "00400000-7fff0000 ---p 00000000 00:00 0 [rollup]\nRss: 500 kB\nPss: 490 kB\n"
    )
    (tmp_path / "7/status").write_text("Name:\tpython\nVmHWM:\t510 kB\nVmRSS:\t100 kB\n")  # 400 kB are free now.

    assert measure_memory({7}, tmp_path) == (490 << 10, 500 << 10)


def batch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = (sys.executable, "-m", "toolkit", "batch", "--batch", "rows", *words, "train.py")
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
    )


def test_the_command_finds_the_batch_at_which_a_job_meets_the_limit_for_each_variant(tmp_path: Path) -> None:
    done = batch(
        tmp_path,
        "--memory",
        "600m",
        "--start",
        "400",
        "--tolerance",
        "1",
        "--steps",
        "2",
        "--json",
        "--variant",
        "native",
        "--variant",
        "mode=half",
        "--learning-rate",
        "1e-3",
    )

    assert done.returncode == 0, done.stderr
    variants = json.loads(done.stdout)["variants"]
    assert 400 <= variants["native"]["batch"] < 600
    assert 800 <= variants["mode=half"]["batch"] < 1200
    assert variants["native"]["learning_rate"] == pytest.approx(1e-3 * variants["native"]["batch"] / 400)
    for attempt in variants["native"]["tries"]:
        assert attempt["fits"] == (attempt["why"] == "")
        assert (
            not attempt["fits"] or attempt["memory_bytes"] >= attempt["batch"] << 20
        )  # What the rows take is in the peak.
    assert not list(tmp_path.glob("jobs"))  # The tries leave nothing here.


def test_a_job_that_fails_with_every_batch_ends_with_its_reason(tmp_path: Path) -> None:
    done = batch(tmp_path, "--start", "1", "--variant", "mode=broken")

    assert done.returncode == 78
    assert "no such column" in done.stderr


def test_a_script_that_is_not_there_is_told_before_any_try(tmp_path: Path) -> None:
    words = ("--batch", "rows", str(tmp_path / "nowhere.py"))

    argv = (sys.executable, "-m", "toolkit.cli.main", "batch", *words)
    done = subprocess.run(
        argv, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 78
    assert done.stderr == f"[toolkit] error: {tmp_path}/nowhere.py: expected a script, found nothing\n"


def test_an_unknown_variant_is_an_error(tmp_path: Path) -> None:
    done = batch(tmp_path, "--variant", "faster")

    assert (done.returncode, "found 'faster'" in done.stderr) == (78, True)


@needs_torch
@pytest.mark.long
def test_zero_lowers_the_peak_of_two_ranks_that_train_a_real_model(tmp_path: Path) -> None:
    """Of 13 million parameters Adam's state takes 2 x 100 MB, and half of that under ZeRO."""
    program = ROOT / "tests/programs/zero_batch.py"
    command = [sys.executable, "-m", "toolkit", "batch", "--batch", "rows", "--memory", "8GiB", "--json"]
    for variant in ("native", "zero=on", "zero=on+autocast"):
        command += ["--variant", variant]
    command += ["--start", "16", "--most", "16", str(program), "--hyperparameter", "layers=1"]
    command += ["--distribution", "torch_distributed", "--processes-per-host", "2"]

    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stderr
    variants = json.loads(done.stdout)["variants"]
    peaks = {name: variant["tries"][0]["memory_bytes"] >> 20 for name, variant in variants.items()}
    assert peaks["zero=on"] < peaks["native"] - 60 and peaks["zero=on+autocast"] < peaks["native"] - 60
