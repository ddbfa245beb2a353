"""Jobs that ModelTrainer itself has sent, run by its own sm_train.sh as PID 1, in an image without the toolkit."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.sdk import replay
from tests.sdk.jobs import HYPERPARAMETERS

pytestmark = pytest.mark.root


def error(sent: Path, name: str) -> str:
    return str(json.loads((sent / name / "sent.json").read_text())["error"])


def test_a_script_gets_what_model_trainer_was_given(container: Any) -> None:
    done = replay.run(container("options"))

    assert done.status == 0, done.log
    simple = ["--lr", "0.1", "--name", "x y", "--flag", "true", "--none", "null"]
    assert done.argv == [*simple, "--list", '[1, "a"]', "--deep", '{"a": 1}', "--more", "1", "a b", "$HOME"]
    assert done.environ["GREETING"] == 'it\'s "one" $HOME'
    assert json.loads(done.environ["SM_HPS"]) == HYPERPARAMETERS
    asked = replay.lines(done.log, ["pip was asked"])
    assert [line.endswith("-r requirements.txt") for line in asked] == [True]


def test_what_the_drivers_of_the_sdk_give_a_script_is_there_too(container: Any) -> None:
    theirs = replay.run(container("driver_options")).environ
    ours = replay.run(container("options")).environ

    names = {name for name in theirs if name.startswith("SM_")}
    assert len(names) > 25
    assert names - ours.keys() == set()
    # Of a null ours is empty, as under SDK v2. The driver says what it starts in SM_TRAINING_ENV alone.
    differing = {name: (theirs[name], ours[name]) for name in names if value(theirs[name]) != value(ours[name])}
    assert set(differing) == {"SM_HP_NONE", "SM_TRAINING_ENV"}, differing


def value(text: str) -> Any:
    """Return what *text* says as JSON, whatever its spaces; itself if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_requirements_of_another_name_are_installed_by_the_sdk_alone(container: Any) -> None:
    done = replay.run(container("named"))

    assert done.status == 0, done.log
    asked = replay.lines(done.log, ["pip was asked"])
    assert len(asked) == 1
    assert asked[0].endswith("deps/gpu.txt")


@pytest.mark.parametrize(("name", "launcher"), [("torchrun", "torchrun"), ("of_version_2", "smddp")])
def test_the_distribution_is_that_of_the_class(container: Any, name: str, launcher: str) -> None:
    job = container(name)
    (job.root / "input/data/code/train.py").write_text("import os; print('rank', os.environ['RANK'], flush=True)\n")

    done = replay.run(job, TOOLKIT_PROCESSES_PER_HOST="2")

    assert done.status == 0, done.log
    assert f"launcher {launcher}, world size 2" in done.log
    assert {line[-6:] for line in replay.lines(done.log, ["rank 0] rank", "rank 1] rank"])} == {"rank 0", "rank 1"}


def test_an_unknown_distribution_ends_with_78_and_names_the_like(container: Any) -> None:
    done = replay.run(container("unknown"))

    assert done.status == 78
    assert "'torchrum'" in (done.failure or "")
    assert "torchrun" in (done.failure or "")
    assert "distributed.json: $.distribution" in (done.failure or "")


def test_the_failure_is_the_exception_of_the_script(container: Any) -> None:
    done = replay.run(container("raises"))

    assert done.status == 1
    assert "ValueError: loss is nan (at /opt/ml/code/train.py:2 in step)" in (done.failure or "")


def test_a_stop_of_pid_1_reaches_the_script_which_saves(container: Any) -> None:
    job = container("saves")

    with replay.started(job) as running:
        running.until(b"ready")
        os.kill(replay.first_process(running), signal.SIGTERM)
        done = running.end()

    assert (done.status, (job.root / "model/saved").exists()) == (0, True), done.log
    assert done.outcome["status"] == "stopped"
    assert "PID 1 of this container" not in done.log


def test_a_stop_that_comes_while_the_toolkit_is_unpacked_is_kept(container: Any) -> None:
    job = container("saves")
    packs = job.root / "input/data/sm_drivers/distributed_drivers/packs"
    # The start waits in its first open of a file until this test writes, so that the signal comes in between.
    (packs / "SHA256SUMS").rename(packs / "sums")
    os.mkfifo(packs / "SHA256SUMS")

    with replay.started(job) as running:
        with (packs / "SHA256SUMS").open("w") as file:  # Opens once it reads.
            os.kill(replay.first_process(running), signal.SIGTERM)
            file.write((packs / "sums").read_text())
        done = running.end()

    assert done.outcome["status"] == "stopped", done.log
    assert "ready" not in done.log


def test_what_cannot_be_sent_is_said_before_it_is_sent(sent: Path) -> None:
    assert "expected a file in 'src', found no 'nix.txt'" in error(sent, "missing_requirements")
    assert "expected no command beside entry_script" in error(sent, "with_a_command")
    assert "processes_per_host" in error(sent, "negative")
    assert "processes" in error(sent, "unknown_option")
    assert "Extra inputs are not permitted" in error(sent, "unknown_option")
