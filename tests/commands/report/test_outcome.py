"""The first screen of a report says the truth, for every way in which a job can end."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.commands.jobs.folders import START_S, failed, output, report, sample, simulated
from toolkit.commands import jobs
from toolkit.commands.report.sections.page import build_page
from toolkit.commands.report.text import TextWriter
from toolkit.job.cause import Cause
from toolkit.job.outcome import Outcome
from toolkit.job.report import HostReport
from toolkit.job.restart import Restart

STOPPED = Outcome(
    status="stopped", exit_code=143, cause=Cause(message="stopped by SIGTERM; script killed by SIGTERM (signal 15)")
)
DONE = Outcome(status="succeeded", exit_code=0)


def text(folder: Path, **more: Any) -> list[str]:
    page = build_page(
        jobs.read(folder, now_s=more.get("now_s")),
        now_s=START_S + 100,
        **{k: v for k, v in more.items() if k != "now_s"},
    )
    return TextWriter(width=100).page(page).splitlines()


def test_a_failed_job_begins_with_its_cause_its_rank_and_its_host(tmp_path: Path) -> None:
    advice = msgspec.structs.replace(failed("algo-2").cause, advice="Lower the learning rate.", identical_failures=2)
    outcome = msgspec.structs.replace(failed("algo-2"), cause=advice)
    simulated(
        tmp_path / "job", report(), {"algo-1": failed("algo-2", this_host_end="was healthy"), "algo-2": outcome}, "x\n"
    )

    lines = text(tmp_path / "job")

    written = (tmp_path / "job/hosts/algo-2/opt/ml/output/outcome.json").read_bytes()
    line = '"message":"ValueError: loss is nan (at'
    place = f"hosts/algo-2/opt/ml/output/outcome.json, byte {written.index(line.encode())}"
    assert lines[:12] == [
        "digits: FAILED",
        "Rank 1 of host algo-2, 10.0 s after the start: ValueError: loss is nan (at train.py:5 in step).",
        "",
        "Cause: ValueError: loss is nan (at train.py:5 in step)",
        "What to do: Lower the learning rate.",
        "Culprit: host algo-2, rank 1 (local rank 0), pid 71: ended with code 3; 2 more ranks with the same",
        "  traceback",
        f"Evidence: {place}: {line}",
        '  train.py:5 in step)"',
        "Healthy: algo-1 was healthy",
        "Look: hosts/algo-2/opt/ml/output/outcome.json; logs/algo-2.log",
        "Exit code: 3 (ExecuteUserScriptError)",
    ]
    assert "  algo-1  failed          3  was healthy; host algo-2 was the cause" in lines
    assert "  | ValueError: loss is nan" in lines


def test_a_vanished_host_is_the_cause(tmp_path: Path) -> None:
    hosts = {
        "algo-1": HostReport(exit_code=75, status="failed", cause="lost host algo-2"),
        "algo-2": HostReport(exit_code=137, status="vanished", cause="killed with everything on it"),
    }
    simulated(tmp_path / "job", report(hosts=hosts, exit_code=75), {"algo-1": failed("algo-2"), "algo-2": None})

    lines = text(tmp_path / "job")

    assert lines[1] == "10.0 s after the start: Host algo-2 vanished: it was killed with everything that ran on it."
    assert "  algo-2  vanished        137  killed with everything on it" in lines
    assert "Culprit: host algo-2" in lines


def test_a_container_that_left_only_a_failure_file_has_its_message(tmp_path: Path) -> None:
    folder = output(tmp_path / "output")
    (folder / "failure").write_text(
        'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "OSError: [Errno 28] No space left on device"\n'
        'ExtraInfo "host algo-1, script, pid 7: ended with code 1"\nCommand "python train.py"\n\nTraceback ...\n'
    )

    lines = text(tmp_path)

    assert lines[1] == "OSError: [Errno 28] No space left on device."
    assert "Culprit: host algo-1, script, pid 7: ended with code 1" in lines


@pytest.mark.parametrize(
    ("secondary", "outcome", "message"),
    [
        ("Stopped", STOPPED, "Stopped by SIGTERM; script killed by SIGTERM (signal 15)."),
        (
            "MaxRuntimeExceeded",
            STOPPED,
            "The job reached its time limit (MaxRuntimeInSeconds): stopped by SIGTERM; script killed by",
        ),
        ("MaxRuntimeExceeded", DONE, "The platform stopped the job (MaxRuntimeExceeded)."),
    ],
)
def test_a_stopped_job_says_what_stopped_it(tmp_path: Path, secondary: str, outcome: Outcome, message: str) -> None:
    simulated(
        tmp_path / "job",
        report(
            "Stopped",
            secondary_status=secondary,
            failed_host="",
            exit_code=143,
            hosts={"algo-1": HostReport(exit_code=143)},
        ),
        {"algo-1": outcome},
    )

    lines = text(tmp_path / "job")

    assert (lines[0], lines[1].startswith(message)) == ("digits: STOPPED", True)


def test_a_job_that_succeeded_says_so_and_no_cause(tmp_path: Path) -> None:
    hosts = {name: HostReport(exit_code=0, status="succeeded") for name in ("algo-1", "algo-2")}
    done = report("Completed", failed_host="", exit_code=0, hosts=hosts)
    simulated(tmp_path / "job", done, {"algo-1": DONE, "algo-2": DONE})

    lines = text(tmp_path / "job")

    assert lines[:2] == ["digits: SUCCEEDED", "Each of 2 hosts ended with 0 after 12.5 s."]
    assert not any(line.startswith("Cause") for line in lines)


def test_a_running_and_a_killed_job_are_told_apart(tmp_path: Path) -> None:
    folder = output(tmp_path / "output", metrics=(sample("loss", 1.0, 2.0),))
    written_s = (folder / "metrics.jsonl").stat().st_mtime

    assert text(tmp_path, now_s=written_s)[0].endswith(": RUNNING")
    killed = text(tmp_path, now_s=written_s + 1000)
    assert killed[0].endswith(": UNFINISHED")
    assert killed[1].startswith("The job left no report and does not run any more")


def test_restarts_are_listed_with_the_failure_before_each(tmp_path: Path) -> None:
    restart = Restart(
        attempt=1, host="algo-1", message="RuntimeError: NaN", rank=0, exit_code=1, failed_ns=int((START_S + 5) * 1e9)
    )
    output(tmp_path / "output", failed("algo-1", restarts=(restart,)))

    lines = text(tmp_path)

    index = lines.index("Restarts")
    assert lines[index + 2].split() == [
        "1",
        "2026-11-18",
        "11:06:45",
        "UTC",
        "algo-1",
        "0",
        "1",
        "RuntimeError:",
        "NaN",
    ]


def test_a_metric_that_became_nan_is_named_with_its_step_host_and_rank(tmp_path: Path) -> None:
    values: tuple[float | str, ...] = (2.0, 1.0, "NaN", "NaN")
    rows = tuple(sample("loss", value, step, step=step, rank=3) for step, value in enumerate(values))
    output(tmp_path / "output", failed("algo-1"), rows)

    lines = text(tmp_path)

    assert "Warning: loss was nan at step 2 (host algo-1, rank 3) for the first time." in lines


def test_a_section_without_its_files_says_what_would_provide_them(tmp_path: Path) -> None:
    (output(tmp_path / "output") / "success").touch()

    summary = " ".join(text(tmp_path))

    assert "No metric was captured. Give metric definitions" in summary
    assert "TOOLKIT_LOG_FILES=on" in summary


def test_secrets_of_the_job_are_masked_in_every_section(tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    outcome = failed("algo-1")
    cause = msgspec.structs.replace(outcome.cause, message=f"KeyError: {secret}", traceback=f"Traceback\n{secret}")
    folder = output(tmp_path / "opt/ml/output", msgspec.structs.replace(outcome, cause=cause))
    (folder / "data" / "logs").mkdir(parents=True)
    (folder / "data" / "logs" / "algo-1-rank-1.log").write_text(f"the token is {secret}\n")
    (tmp_path / "opt/ml/input/config").mkdir(parents=True)
    (tmp_path / "opt/ml/input/config/hyperparameters.json").write_text(f'{{"api_key": "{secret}"}}')

    report_text = "\n".join(text(tmp_path / "opt/ml"))

    assert secret not in report_text
    assert report_text.count("******") >= 4


def test_an_exceptions_text_does_not_steer_the_terminal(tmp_path: Path) -> None:
    outcome = failed("algo-1")
    cause = msgspec.structs.replace(outcome.cause, message="ValueError: \x1b[2J\x9bgone\x00")
    output(tmp_path / "output", msgspec.structs.replace(outcome, cause=cause))

    page = build_page(jobs.read(tmp_path), now_s=START_S + 100)

    assert not set(TextWriter(width=100).page(page)) & set("\x1b\x9b\x00")
