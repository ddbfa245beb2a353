"""The files at a job's end: what is written, what is kept, and that no error there changes the outcome."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.folders import unlookable
from toolkit.collectives.comparison import CallPlace, GroupComparison
from toolkit.job.cause import Cause
from toolkit.job.compilation import Compilation, Recompilation, Trial
from toolkit.job.job import Folders
from toolkit.job.outcome import Exit, Outcome, from_document
from toolkit.job.restart import Restart
from toolkit.job.stuck import StuckRank
from toolkit.log import Log
from toolkit.train.platforms.outcome_files import clear_stale, failure_text, report
from toolkit.train.platforms.sagemaker.read_job import folders

SUCCEEDED = Outcome(status="succeeded", exit_code=0, cause_host="algo-1")
FAILED = Outcome(
    status="failed",
    exit_code=3,
    cause=Cause(
        blame="user",
        kind="ExecuteUserScriptError",
        message="ValueError: labels are missing",
        traceback="Traceback (most recent call last):\n  ...\nValueError: labels are missing",
        process="rank 3",
        pid=71,
        rank=3,
        local_rank=1,
        process_end="exit code 3",
    ),
    cause_host="algo-2",
    command=("python", "train.py", "--name", "it's"),
    exits=(Exit(process="rank 3", pid=71, started_ns=1, ended_ns=2, code=3, rank=3),),
)
# How users' tools parse sagemaker-training's failure text.
OLD_SHAPE = re.compile(r'^(\w+):\nExitCode (\d+)\nErrorMessage "(.*?)"\n(?:ExtraInfo "(.*)"\n)?Command "(.*)"', re.S)


@pytest.fixture
def places(tmp_path: Path) -> Folders:
    places = folders({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    places.output.mkdir()
    return places


def test_success_is_an_empty_file_and_a_line(places: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    report(places, SUCCEEDED, Log())

    assert places.success.read_bytes() == b""
    assert not places.failure.exists()
    assert "Reporting training SUCCESS" in capfd.readouterr().err


def test_failure_is_a_text_and_a_line(places: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    report(places, FAILED, Log())

    errors = capfd.readouterr().err
    assert not places.success.exists()
    assert places.failure.read_text().startswith(failure_text(FAILED))
    assert "Reporting training FAILURE" in errors
    assert "ValueError: labels are missing" in errors


def test_the_whole_story_is_beside_it(places: Folders) -> None:
    report(places, FAILED, Log())

    story = json.loads((places.output / "outcome.json").read_text())
    assert (story["status"], story["exit_code"], story["cause"]["rank"]) == ("failed", 3, 3)
    assert story["exits"][0]["code"] == 3
    assert story["command"] == ["python", "train.py", "--name", "it's"]


def test_a_stopped_job_whose_script_ended_well_is_a_success(places: Folders) -> None:
    report(places, Outcome(status="stopped", exit_code=0), Log())

    assert places.success.exists()
    assert not places.failure.exists()


def test_where_the_log_is_to_be_brief_the_file_alone_says_why(
    places: Folders, capfd: pytest.CaptureFixture[str]
) -> None:
    log = Log()
    log.brief = True

    report(places, FAILED, log)

    assert capfd.readouterr().err == "[toolkit] error: Reporting training FAILURE\n"
    assert places.failure.read_text().startswith(failure_text(FAILED))


def test_a_stopped_job_that_did_not_end_well_says_why_and_is_no_failure(
    places: Folders, capfd: pytest.CaptureFixture[str]
) -> None:
    report(
        places,
        Outcome(status="stopped", exit_code=143, cause=Cause(kind="Stopped", message="stopped by SIGTERM")),
        Log(),
    )

    errors = capfd.readouterr().err
    assert errors == "[toolkit] warning: Training was stopped, exit code 143: stopped by SIGTERM\n"
    assert not places.success.exists()
    assert places.failure.read_text() == 'Stopped:\nExitCode 143\nErrorMessage "stopped by SIGTERM"'


def test_the_failure_file_of_the_script_is_kept(places: Folders) -> None:
    places.failure.write_text("my own words")

    report(places, FAILED, Log())

    assert places.failure.read_text() == "my own words"


@pytest.mark.parametrize("kind", ["link", "dead link", "hard link", "fifo"])
def test_no_report_is_written_through_what_the_script_made_of_its_name(
    places: Folders, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    for outcome in (FAILED, SUCCEEDED):
        victim.write_text("")  # An empty one: a failure text of the script's own would be kept.
        for file in (places.failure, places.success, places.output / "outcome.json"):
            file.unlink(missing_ok=True)
            if kind == "fifo":
                os.mkfifo(file)
            elif kind == "hard link":
                file.hardlink_to(victim)
            else:
                file.symlink_to(victim if kind == "link" else tmp_path / "nowhere")

        report(places, outcome, Log())

        assert json.loads((places.output / "outcome.json").read_bytes())["status"] == outcome.status
        assert (places.failure if outcome is FAILED else places.success).is_file()
        assert not (places.output / "outcome.json").is_symlink()
        assert victim.read_text() == "" and not (tmp_path / "nowhere").exists()


def test_an_empty_failure_file_says_nothing_and_is_written(places: Folders) -> None:
    places.failure.touch()

    report(places, FAILED, Log())

    assert places.failure.read_text().startswith("ExecuteUserScriptError:")


def test_the_failure_file_of_a_script_that_succeeded_is_no_failure(places: Folders) -> None:
    places.failure.write_text("only a warning")

    report(places, SUCCEEDED, Log())

    assert places.success.exists()
    assert places.failure.read_text() == "only a warning"


def test_what_an_earlier_run_left_is_cleared_and_nothing_else(places: Folders) -> None:
    report(places, FAILED, Log())
    places.success.touch()
    (places.output / "mine").touch()

    clear_stale(places, Log())

    assert [entry.name for entry in places.output.iterdir()] == ["mine"]


def test_clearing_where_there_is_nothing_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clear_stale(folders({"SAGEMAKER_BASE_DIR": str(tmp_path / "none")}), Log())

    assert capfd.readouterr().err == ""


def test_what_cannot_be_cleared_is_said(places: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    places.failure.mkdir()

    clear_stale(places, Log())

    assert "output/failure: left by an earlier run; cannot be removed (Is a directory)" in capfd.readouterr().err


def test_a_report_that_cannot_be_looked_at_is_not_taken_for_absent(
    places: Folders, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places.success.touch()
    unlookable(monkeypatch, places.success)

    clear_stale(places, Log())

    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    assert not places.success.exists()


def test_a_failed_job_leaves_no_success_file_of_the_scripts_own(
    places: Folders, capfd: pytest.CaptureFixture[str]
) -> None:
    places.success.write_text("mine")

    report(places, FAILED, Log())

    assert not places.success.exists()
    assert places.failure.exists()
    assert "output/success: removed: a program other than train wrote it" in capfd.readouterr().err


def test_a_folder_in_the_failure_files_place_is_said(places: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    (places.failure / "full").mkdir(parents=True)

    report(places, FAILED, Log())

    assert "output/failure: cannot be written (Is a directory); the job's status stays" in capfd.readouterr().err


def test_a_missing_output_folder_is_made_again(places: Folders) -> None:
    places.output.rmdir()

    report(places, FAILED, Log())

    assert places.failure.exists()


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["success", "failure"])
def test_a_base_that_is_not_there_is_created_and_one_that_cannot_be_a_folder_is_said_and_swallowed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], outcome: Outcome
) -> None:
    (tmp_path / "file").touch()

    for base in (tmp_path / "none", tmp_path / "file", Path("/proc/self")):
        report(folders({"SAGEMAKER_BASE_DIR": str(base)}), outcome, Log())

    assert capfd.readouterr().err.count("cannot be written") == 2 * 2
    assert (tmp_path / "none" / "output" / "outcome.json").exists()


FULL = """
import resource, sys
from toolkit.job.cause import Cause
from toolkit.job.outcome import Outcome
from toolkit.log import Log
from toolkit.train.platforms.sagemaker.read_job import folders
from toolkit.train.platforms.outcome_files import report
resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
cause = Cause(kind="ExecuteUserScriptError", message="ValueError: no labels")
outcome = Outcome(status="failed", exit_code=3, cause=cause)
report(folders({"SAGEMAKER_BASE_DIR": sys.argv[1]}), outcome, Log())
sys.exit(outcome.exit_code)
"""


def test_a_disk_that_takes_no_more_changes_nothing_and_the_log_has_the_text(places: Folders) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", FULL, str(places.base)], stderr=subprocess.PIPE, text=True, check=False
    )

    assert completed.returncode == 3
    assert completed.stderr.count("cannot be written (File too large)") == 2
    assert "ValueError: no labels" in completed.stderr
    assert list(places.output.iterdir()) == []


def test_outcome_json_keeps_its_keys(places: Folders) -> None:
    """Users read it: whatever the fields are called here, its keys change only with its version."""
    outcome = Outcome(
        status="failed",
        exit_code=139,
        cause_host="algo-2",
        cause=Cause(
            blame="user",
            kind="ExecuteUserScriptError",
            message="rank 3 was killed",
            traceback="Traceback",
            process="rank 3",
            pid=71,
            rank=3,
            local_rank=1,
            process_end="killed by SIGSEGV (signal 11)",
            evidence="output",
            advice="Run it alone",
            primary=True,
            peer_lost=True,
            failed_ns=5,
            fingerprint="ValueError at train.py:7",
            identical_failures=2,
            preempted=True,
        ),
        plugin_failure_text="Error:",
        this_host_end="was healthy",
        stuck_ranks=(StuckRank(process="rank 3", activity="works", file="train.py", line=7, function="step"),),
        collectives=(
            GroupComparison(
                group="the default group",
                state="missing",
                common_number=1,
                common_operation="broadcast",
                number=2,
                operation="all_reduce",
                places=(
                    CallPlace(
                        ranks=(0, 1),
                        number=2,
                        operation="all_reduce",
                        payload="4 Float",
                        file="train.py",
                        line=61,
                        function="step",
                    ),
                ),
                absent=(2, 3),
                unread=(3,),
                blamed=(2,),
            ),
        ),
        console_lost_bytes=9,
        command=("python", "train.py"),
        exits=(Exit(process="rank 3", pid=71, started_ns=1, ended_ns=5, signal=11, rank=3, local_rank=1),),
        notes=("a note",),
        restarts=(
            Restart(attempt=1, host="algo-1", message="boom", process="rank 0", rank=0, exit_code=3, failed_ns=4),
        ),
        compiler=Compilation(
            framework="torch",
            compile="auto",
            state="eager",
            reason="compiled 21 ms, eager 20 ms",
            modules=("Net",),
            recompilations=(Recompilation(function="forward", reason="size mismatch", count=2),),
            trial=Trial(pairs=8, eager_step_ms=20.0, candidate_step_ms=21.0, kept=False, cost_s=1.5),
        ),
    )

    report(places, outcome, Log())

    written = (places.output / "outcome.json").read_bytes()
    assert json.loads(written) == json.loads(Path(__file__).with_name("outcome.json").read_bytes())
    assert from_document(written, "outcome.json") == outcome


def test_secrets_are_masked_in_every_file(places: Folders) -> None:
    log = Log()
    log.hide({"api_key": "hf_0123456789"})
    outcome = Outcome(
        status="failed",
        exit_code=1,
        cause=Cause(message="KeyError: 'hf_0123456789'", traceback="Traceback ... hf_0123456789"),
        command=("python", "train.py", "--api_key", "hf_0123456789"),
    )

    report(places, outcome, log)

    written = "".join(file.read_text() for file in places.output.iterdir())
    assert "hf_0123456789" not in written
    assert written.count("******") >= 5


@pytest.mark.parametrize("word", ["algo-2", "ExecuteUserScriptError", "rank 3", "exit code 3"])
def test_a_secret_that_is_a_word_of_ours_is_masked_in_what_was_said_alone(places: Folders, word: str) -> None:
    log = Log()
    log.hide({"api_key": word})
    cause = msgspec.structs.replace(FAILED.cause, message=f"ValueError: {word} is wrong")
    outcome = msgspec.structs.replace(FAILED, cause=cause, notes=(f"about {word}",))

    report(places, outcome, log)

    story = json.loads((places.output / "outcome.json").read_bytes())
    assert (story["status"], story["cause_host"], story["cause"]["kind"]) == (
        "failed",
        "algo-2",
        "ExecuteUserScriptError",
    )
    assert (story["cause"]["process"], story["cause"]["process_end"]) == ("rank 3", "exit code 3")
    assert (story["cause"]["message"], story["notes"]) == ("ValueError: ****** is wrong", ["about ******"])


@pytest.mark.parametrize("name", ["sort_key", "api_key", "password"])
@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "failed"])
def test_a_hyperparameter_that_equals_the_status_does_not_keep_it_from_being_told(
    places: Folders, name: str, outcome: Outcome
) -> None:
    log = Log()
    log.hide({name: outcome.status})

    report(places, outcome, log)

    assert json.loads((places.output / "outcome.json").read_bytes())["status"] == outcome.status


def test_what_cannot_be_masked_is_left_out(places: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> str:
        raise RuntimeError(text)

    monkeypatch.setattr("toolkit.log.mask", fail)

    report(places, FAILED, Log())

    story = json.loads((places.output / "outcome.json").read_bytes())
    assert (story["status"], story["exit_code"]) == ("failed", 3)
    assert story["cause"]["message"] == "(left out: it could not be masked, RuntimeError)"
    assert "labels" not in "".join(file.read_text() for file in places.output.iterdir())


def test_a_secret_is_masked_before_the_text_is_cut(places: Folders) -> None:
    log = Log()
    log.hide({"api_key": "hf_" + "0123456789" * 10})
    command = ("x" * 900, "hf_" + "0123456789" * 10)

    report(places, Outcome(status="failed", exit_code=1, cause=Cause(message="c"), command=command), log)

    assert "hf_0" not in places.failure.read_text()


def test_text_that_is_no_unicode_is_written_all_the_same(places: Folders) -> None:
    report(places, Outcome(status="failed", exit_code=1, cause=Cause(message="bad \udcff byte")), Log())

    assert r"bad \xff byte" in places.failure.read_text()
    assert json.loads((places.output / "outcome.json").read_text())["cause"]["message"] == r"bad \xff byte"


def test_a_nul_that_the_script_printed_ends_no_text(places: Folders) -> None:
    report(places, Outcome(status="failed", exit_code=4, cause=Cause(message="bad \0 red", traceback="a\0b")), Log())

    assert "bad \ufffd red" in places.failure.read_text()
    assert "\0" not in places.failure.read_text()


# The text


def test_the_text_has_cause_place_and_command_in_the_old_shape() -> None:
    assert failure_text(FAILED) == (
        "ExecuteUserScriptError:\n"
        "ExitCode 3\n"
        'ErrorMessage "ValueError: labels are missing"\n'
        'ExtraInfo "host algo-2, rank 3 (local rank 1), pid 71: exit code 3"\n'
        "Command \"python train.py --name 'it'\"'\"'s'\""
    )


@pytest.mark.parametrize(
    ("host", "cause", "text"),
    [
        ("", {"kind": "ClientError", "message": "x"}, 'ClientError:\nExitCode 1\nErrorMessage "x"'),
        ("", {"message": "x"}, 'Framework Error:\nExitCode 1\nErrorMessage "x"'),
        ("a", {"kind": "K"}, 'K:\nExitCode 1\nErrorMessage ""\nExtraInfo "host a"'),
        ("a", {"kind": "K", "process": "pip"}, 'K:\nExitCode 1\nErrorMessage ""\nExtraInfo "host a, pip"'),
        ("", {"kind": "K", "rank": 0}, 'K:\nExitCode 1\nErrorMessage ""\nExtraInfo "rank 0"'),
        ("", {"kind": "K", "process_end": "SIGKILL"}, 'K:\nExitCode 1\nErrorMessage ""\nExtraInfo "SIGKILL"'),
        (
            "",
            {"kind": "K", "rank": 3, "identical_failures": 511},
            'K:\nExitCode 1\nErrorMessage ""\nExtraInfo "rank 3; 511 more ranks with the same traceback"',
        ),
    ],
)
def test_what_is_not_known_is_left_out(host: str, cause: dict[str, Any], text: str) -> None:
    assert failure_text(Outcome(status="failed", exit_code=1, cause_host=host, cause=Cause(**cause))) == text


def test_a_long_command_is_cut_before_the_cause() -> None:
    cause = "c" * 700
    outcome = Outcome(
        status="failed", exit_code=1, cause=Cause(kind="K", message=cause), command=("python", "x" * 5_000)
    )

    text = failure_text(outcome)

    assert len(text) == 1024
    assert cause in text
    assert text.endswith('xxx..."')


def test_a_long_cause_keeps_its_beginning_and_the_place() -> None:
    outcome = Outcome(
        status="failed",
        exit_code=1,
        cause=Cause(kind="K", message="first " + "c" * 5_000),
        cause_host="a",
        command=("python",),
    )

    text = failure_text(outcome)

    assert len(text) == 1024
    assert text.startswith('K:\nExitCode 1\nErrorMessage "first ccc')
    assert text.endswith('ccc..."\nExtraInfo "host a"')


def test_the_whole_of_what_was_cut_follows_in_the_file(places: Folders) -> None:
    cause = "first " + "c" * 5_000 + " last"

    report(
        places,
        Outcome(status="failed", exit_code=1, cause=Cause(kind="K", message=cause, traceback="Traceback: all")),
        Log(),
    )

    written = places.failure.read_text()
    assert len(written[:1024].splitlines()) == 3
    assert written[1024:] == f"\n\n{cause}\n\n\nTraceback: all\n"


text = st.text(max_size=3_000)


@given(text, text, text, text, st.lists(text, max_size=5), st.none() | st.integers(0, 10**9))
def test_the_text_always_fits_with_the_cause_first(
    kind: str, cause: str, host: str, process_end: str, command: list[str], rank: int | None
) -> None:
    outcome = Outcome(
        status="failed",
        exit_code=1,
        cause=Cause(kind=kind, message=cause, process_end=process_end, rank=rank, local_rank=rank),
        cause_host=host,
        command=tuple(command),
    )

    text = failure_text(outcome)

    assert len(text) <= 1024
    assert f'ErrorMessage "{cause[:500]}' in text


@given(st.text("ab\n", max_size=2_000), st.lists(st.text("ab-", min_size=1, max_size=200), min_size=1, max_size=5))
def test_people_who_parse_the_old_shape_still_can(cause: str, command: list[str]) -> None:
    outcome = Outcome(
        status="failed",
        exit_code=7,
        cause=Cause(kind="ExecuteUserScriptError", message=cause),
        cause_host="a",
        command=tuple(command),
    )

    parsed = OLD_SHAPE.match(failure_text(outcome))

    if len(cause) < 800:
        assert parsed
        assert parsed.group(1, 2, 3) == ("ExecuteUserScriptError", "7", cause)
