"""toolkit partition as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallelism.shapes import SHAPES
from tests.rank.modelparallel.started import PROGRAMS, ended, smp_ranks
from toolkit.parallelism import decision
from toolkit.parallelism.partitioner import decide


def toolkit_partition(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit.cli.main", "partition", *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        cwd=folder,
    )


def test_a_decision_is_shown_as_text_and_as_a_page(tmp_path: Path) -> None:
    file = tmp_path / "partition.json"
    decision.write(decide(SHAPES["small-llama"](), 2, 0.8, "f00d", profiled_by="a test"), file)

    text = toolkit_partition("show", file, folder=tmp_path)
    page = toolkit_partition("show", file, "-o", "page.html", folder=tmp_path)

    assert (text.returncode, text.stderr, page.returncode, page.stderr) == (0, "", 0, "")
    assert text.stdout.startswith(
        "partition.json: CONTIGUOUS\n2 partitions. The tree method's busiest partition would cost "
    )
    for phrase in ("Measured by: a test", "f00d", "  partition      ", "h.4 to 6", "The busiest partition has 1.0"):
        assert phrase in text.stdout
    assert "partition 1" in (tmp_path / "page.html").read_text()


def test_what_is_no_decision_and_a_script_without_partitions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    broken = tmp_path / "b.json"
    decision.write(decide(SHAPES["perceptron"](), 2, 0.8, "x"), broken)
    broken.write_text(broken.read_text().replace('"8": 1', '"8": 7'))

    for words, expected in (
        (("show", "a.json"), "fingerprint"),
        (("show", "none.json"), "expected a partition decision, found no readable file"),
        (("show", "b.json"), "expected partitions from 0 to 1 in assignment, found 7 for '8'"),
        (("profile", "train.py"), "expected --partitions"),
        (("profile", "--partitions", "2", "train.py", "-o", "x.json"), "before train.py, found -o behind it"),
        (("profile", "--partitions", "2"), "expected a script or a job file, found none"),
        (("profile", "--partitions", "2", "job.toml"), "expected the job file to have its parameters, found --part"),
    ):
        completed = toolkit_partition(*words, folder=tmp_path)
        assert completed.returncode == 78, completed
        assert expected in completed.stderr


@pytest.mark.torch
def test_a_profiled_script_gets_a_decision_that_its_job_then_follows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    profile = ("profile", "--partitions", "2", "-o", "decided.json")
    completed = toolkit_partition(
        *profile, PROGRAMS / "smp_partition.py", "--job-dir", tmp_path / "job", folder=tmp_path
    )
    assert completed.returncode == 0, completed.stderr
    assert "decided.json: " in completed.stdout and '"loss"' not in completed.stderr
    decided = decision.read(tmp_path / "decided.json")
    assert "computing timed, activations as saved" in decided.profiled_by
    parameters = {"partitions": 2, "microbatches": 2, "partition_file": str(tmp_path / "decided.json")}

    outputs = ended(smp_ranks(PROGRAMS / "smp_partition.py", parameters=parameters, size=2, folder=tmp_path / "data"))

    decisions = [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]
    assert decisions[0]["assignment"] == decisions[1]["assignment"]
    assert {name: decided.device_of(name) for name in decisions[0]["assignment"]} == decisions[0]["assignment"]
    assert set(decisions[0]["assignment"].values()) == {0, 1}
    assert decision.read(tmp_path / "data" / decision.FILE) == decided
