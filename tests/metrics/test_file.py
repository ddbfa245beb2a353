import json
import math
import os
import resource
import signal
from pathlib import Path

import pytest

from toolkit.metrics.file import SampleFile, read
from toolkit.metrics.sample import Sample


def sample(value: float = 0.5, name: str = "loss", step: int | None = None) -> Sample:
    return Sample(name=name, value=value, time_s=1760000000.25, host="algo-1", rank=0, step=step)


def test_a_sample_is_a_line_that_any_json_reader_understands(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = SampleFile(path, warn=pytest.fail)

    file.append([sample(step=120), sample(math.nan)])

    first, second = (json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())
    assert first == {"name": "loss", "value": 0.5, "time_s": 1760000000.25, "host": "algo-1", "rank": 0, "step": 120}
    assert (second["value"], second["step"]) == ("NaN", None)


def test_all_floats_survive_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    values = [0.1, -0.0, 4.5e-05, 1e300, 5e-324, 1e16, 3.0, math.inf, -math.inf, math.nan]
    file = SampleFile(path, warn=pytest.fail)
    file.append([sample(value) for value in values])
    file.close()

    assert [repr(sample.value) for sample in read(path)] == [repr(value) for value in values]


def test_the_file_is_there_with_the_first_sample_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = SampleFile(path, warn=pytest.fail)
    file.append([])

    assert not path.exists()
    file.append([sample()])
    assert list(read(path)) == [sample()]


def test_a_cut_line_is_passed_over_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    SampleFile(path, warn=pytest.fail).append([sample(1), sample(2)])
    path.write_bytes(path.read_bytes()[:-10])

    first_read = [sample.value for sample in read(path)]
    SampleFile(path, warn=pytest.fail).append([sample(3)])

    assert first_read == [1]
    assert [sample.value for sample in read(path)] == [1, 3]


def test_a_full_disk_switches_the_file_off_with_one_note(tmp_path: Path) -> None:
    messages: list[str] = []
    file = SampleFile(Path("/dev/full"), warn=messages.append)

    for _ in range(3):
        file.append([sample()])

    assert len(messages) == 1
    assert "No space left" in messages[0]
    assert file.written == 0


def test_a_disk_that_fills_in_the_middle_leaves_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    messages: list[str] = []
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        file = SampleFile(path, warn=messages.append)
        for step in range(100):
            file.append([sample(step=step)])
        os._exit(0 if len(messages) == 1 else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert path.stat().st_size == 1000
    assert [sample.step for sample in read(path)] == list(range(len(list(read(path)))))


def test_a_folder_that_is_gone_is_told_of_once(tmp_path: Path) -> None:
    messages: list[str] = []
    file = SampleFile(tmp_path / "gone/metrics.jsonl", warn=messages.append)

    file.append([sample()])
    file.append([sample()])

    assert len(messages) == 1
    assert "gone/metrics.jsonl: No such file or directory" in messages[0]
