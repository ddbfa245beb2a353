"""The notes on damaged records: each names the file, and what is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.commands import jobs
from toolkit.commands.jobs.damage import find_damage
from toolkit.series import blocks, sample_reader, step_records
from toolkit.series.column import SampleColumn
from toolkit.series.sample_writer import SampleWriter

ROW = {"name": "loss", "value": 1.0, "time_s": 1000.0, "host": "algo-1"}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the output folder of a job with a minute of samples, three values and a finding."""
    output = tmp_path / "output"
    (output / "monitor").mkdir(parents=True)
    (output / "success").write_text("")
    writer = SampleWriter(output / "monitor/samples", (SampleColumn(name="cpu/all/used_percent", unit="%"),))
    for number in range(60):
        writer.add(1000.0 + number, [50.0])
    writer.close()
    (output / "metrics.jsonl").write_text((json.dumps(ROW) + "\n") * 3)
    return output


def raw_file(output: Path) -> Path:
    return next(path for path in (output / "monitor/samples").iterdir() if "-00-" in path.name)


def report(output: Path) -> str:
    command = [sys.executable, "-m", "toolkit", "report", str(output), "-o", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return joined(done.stdout)


def joined(text: str) -> str:
    """Return *text* without blanks: a page breaks long paths anywhere."""
    return "".join(text.split())


def test_whole_records_have_no_note(output: Path) -> None:
    assert find_damage(jobs.read(output)) == ()


def test_a_changed_sample_is_left_out_and_its_file_is_named(output: Path) -> None:
    path = raw_file(output)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF  # The last value of the last sample.
    path.write_bytes(content)

    notes = find_damage(jobs.read(output))
    series = sample_reader.read(output / "monitor/samples").series("cpu/all/used_percent")

    assert len(notes) == 1
    assert notes[0].startswith(f"{path} is damaged: 1 of its 41 blocks were changed")
    assert set(series.mean.tolist()) == {50.0}


def test_steps_of_another_version_are_named_and_none_is_made_up(output: Path) -> None:
    (output / "monitor/steps").mkdir()
    path = output / "monitor/steps/000001.steps"
    appender = blocks.Appender(path, b'{"kind":"steps"}')
    appender.append(blocks.STEPS, 44, b"\0" * 44 * 72)  # Which is 36 times 88 bytes.
    appender.close()

    assert find_damage(jobs.read(output)) == (
        f"{path} was written by another version of the toolkit: expected 88 bytes a step, found 72; steps are missing"
        " there. Read the job with that version.",
    )
    assert len(step_records.read(output / "monitor/steps").step) == 0


def test_empty_samples_are_not_called_a_monitor_that_was_off(output: Path) -> None:
    for path in (output / "monitor/samples").iterdir():
        path.write_bytes(b"")

    page = report(output)

    assert joined(f"{raw_file(output).name} is damaged: it is empty; samples are missing there.") in page
    assert joined("The monitor's files hold nothing that can be read") in page
    assert joined("monitor was off") not in page


def test_damaged_lines_are_counted(output: Path) -> None:
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"name": "loss", "val\n')
    (output / "monitor/findings.jsonl").write_text("no finding\n")

    page = report(output)

    for text in (
        "metrics.jsonl is damaged: 1 of its 4 lines cannot be read; their captured values are missing.",
        "findings.jsonl is damaged: 1 of its 1 lines cannot be read; their findings of the running job are missing.",
    ):
        assert joined(text) in page


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_folder_or_a_pipe_in_the_place_of_a_record_is_named_and_nothing_waits(output: Path, kind: str) -> None:
    paths = (raw_file(output), output / "metrics.jsonl")
    for path in paths:
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)

    page = report(output)

    for path in paths:
        assert joined(f"{path.name} cannot be read") in page
