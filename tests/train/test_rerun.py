"""The second job in one container, as on a warm pool: nothing of the first is taken for the second's (checklist 73)."""

import json
from pathlib import Path

from tests.train.base import Base

FIRST = "print('loss=1.0')\nprint('first')\n"
SECOND = "print('loss=2.0')\nprint('second')\n"


def test_metrics_and_outcome_are_those_of_the_last_run(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program(FIRST + "raise SystemExit(3)\n")
    assert base.train().status == 3
    base.program(SECOND)

    done = base.train()

    samples = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert (done.status, done.succeeded, done.failure) == (0, True, None)
    assert (done.outcome["status"], done.outcome["cause"]["message"]) == ("succeeded", "")
    assert [sample["value"] for sample in samples] == [2.0]


def test_a_run_that_dies_with_train_leaves_no_success_of_the_run_before(base: Base) -> None:
    base.program(FIRST)
    assert base.train().succeeded
    base.program("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(60)\n")

    done = base.train()

    assert done.status == 137
    assert not done.succeeded
    assert done.failure is None
    assert not (base.output / "outcome.json").exists()


def test_wrong_documents_leave_no_success_of_the_run_before(base: Base) -> None:
    base.program(FIRST)
    assert base.train().succeeded
    base.document("resourceconfig.json", b"{")

    done = base.train()

    assert done.status == 78
    assert not done.succeeded
    assert done.outcome["status"] == "failed"


def test_an_empty_failure_file_of_the_script_is_no_explanation(base: Base) -> None:
    base.program("import os\nopen(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').close()\nraise ValueError('why')\n")

    done = base.train()

    assert done.status == 1
    assert done.failure is not None
    assert "ValueError: why" in done.failure


def test_the_next_jobs_source_replaces_the_last_ones_without_a_word(base: Base) -> None:
    for name, text in (("one", FIRST), ("two", SECOND)):
        folder = base.folder / name
        folder.mkdir()
        (folder / "train.py").write_text(text)
        (folder / f"{name}.txt").touch()
        base.hyperparameters({"sagemaker_submit_directory": json.dumps(str(folder))})

        done = base.train()

    assert done.stdout.endswith(b"second\n")
    assert sorted(path.name for path in base.code.iterdir() if not path.name.startswith(".")) == ["train.py", "two.txt"]
    assert "warning" not in done.log


def test_nothing_is_left_in_the_folder_for_temporary_files_but_what_a_next_run_wants(base: Base) -> None:
    scratch = base.folder / "scratch"
    scratch.mkdir()
    base.program(FIRST)

    for _ in range(2):
        base.train(TMPDIR=str(scratch))

    left = [path for path in scratch.rglob("*") if path.is_file() or path.name.startswith("run-")]
    assert left == []


STARTS_TRAIN = """
import os, subprocess, sys
print("loss=1.5", flush=True)
inner = subprocess.run([sys.executable, "-m", "toolkit.cli.main", "train"], env={**os.environ, **MORE})
print("loss=2.5")
sys.exit(inner.returncode)
"""


def test_a_train_that_the_jobs_script_starts_is_refused_and_touches_no_file(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program("MORE = {}" + STARTS_TRAIN)

    done = base.train()

    samples = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert done.status == 78, done
    assert done.log.count("train was started by the script of the job that it would run") >= 1
    assert done.log.count("Invoking script") == 1
    assert [sample["value"] for sample in samples] == [1.5, 2.5]
    assert done.failure is not None and "ended with code 78" in done.failure


def test_a_script_may_start_a_train_of_another_base(base: Base, tmp_path: Path) -> None:
    other = Base(tmp_path / "other")
    other.program("print('inner')\n")
    base.program(f"MORE = {{'SAGEMAKER_BASE_DIR': {str(other.root)!r}}}{STARTS_TRAIN}")

    done = base.train()

    assert done.status == 0, done
    assert b"inner\n" in done.stdout
    assert other.output.joinpath("success").exists()
