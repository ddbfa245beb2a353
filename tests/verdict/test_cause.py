"""What is told of a process that failed: by what the start-up hook noted, and by where it spoke last."""

import signal
from typing import Literal

import msgspec
import pytest

from tests.verdict.test_crash import ABORTED, DEVICE, GLOO, LOST
from tests.verdict.test_judge import ABRT, SAGEMAKER, TERM, process, seen
from tests.verdict.test_traceback import GROUP, OTHER, PLAIN
from toolkit.job.cause import Grounds
from toolkit.job.outcome import Ended, Outcome
from toolkit.status_pages import Raised, Thrown
from toolkit.verdict.judge import judge

PLACE = "train.py:9 in main"
HANDLING = Thrown(kind="FileNotFoundError", message="[Errno 2] No such file: 'a'", place="train.py:3 in load")


def noted(kind: str, message: str = "", text: str = "", **more: object) -> Raised:
    return msgspec.convert(
        {"time_ns": 1, "kind": kind, "message": message, "text": text, "place": PLACE, **more}, Raised
    )


def left(code: int, message: str = "", handling: Thrown | None = None) -> Raised:
    text = "" if handling is None else "Traceback (of what was handled)"
    return Raised(time_ns=1, kind="SystemExit", message=message, text=text, place=PLACE, code=code, handling=handling)


def script(
    how: int | signal.Signals,
    stderr: str = "",
    stdout: str = "",
    raised: Raised | None = None,
    last_on: Literal["stderr", "stdout", "both"] = "stderr",
) -> Ended:
    return msgspec.structs.replace(
        seen(process("script", 5, how)),
        tails={"script": (stderr.encode(), stdout.encode())},
        last_on={"script": last_on},
        raised={} if raised is None else {"script": raised},
    )


def judged(*of: object, **more: object) -> Outcome:
    return judge(SAGEMAKER, script(*of, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "grounds"),
    [
        (script(7), "nothing"),
        (script(7, "no such shard"), "words"),
        (script(7, stdout="no such shard", last_on="stdout"), "words"),
        (script(3, "no such shard", raised=left(3)), "reason"),
        (script(3, raised=left(3)), "reason"),
        (script(1, raised=noted("ValueError", "no shard", PLAIN)), "reason"),
        (script(1, PLAIN), "reason"),
        (script(TERM), "reason"),
        (script(ABRT, ABORTED), "reason"),
    ],
)
def test_a_cause_rests_on_a_reason_on_last_words_or_on_nothing(ended: Ended, grounds: Grounds) -> None:
    assert judge(SAGEMAKER, ended).cause.grounds == grounds


def test_a_long_message_hides_neither_type_nor_place() -> None:
    cut = "Traceback (most recent call last):\n" + "x" * 1000 + "\n... the middle of this text was too long\nxxx\n"

    outcome = judged(1, "x" * 60_000, raised=noted("ValueError", "x" * 8000, cut))

    assert outcome.cause.text == f"ValueError (at {PLACE}): {'x' * 8000}"


def test_a_message_of_many_lines_keeps_its_first_and_empty_ones_do_not_end_it() -> None:
    outcome = judged(1, "line\n" * 9, raised=noted("ValueError", "\n\nno data\n\nin shard 7\n" + "line\n" * 60_000))

    assert outcome.cause.text.splitlines()[:2] == [f"ValueError: no data (at {PLACE})", "in shard 7"]
    assert len(outcome.cause.text.splitlines()) == 30


def test_what_is_noted_counts_and_not_another_traceback_that_was_printed() -> None:
    outcome = judged(1, OTHER, raised=noted("ValueError", "no shard", PLAIN))

    assert outcome.cause.text == f"ValueError: no shard (at {PLACE})"
    assert outcome.cause.traceback == PLAIN.strip()


@pytest.mark.parametrize(
    ("kind", "message", "text", "cause"),
    [
        (
            "ExceptionGroup",
            "many (3 sub-exceptions)",
            GROUP,
            "ExceptionGroup: many (3 sub-exceptions) (at train.py:2 in f)",
        ),
        (
            "SyntaxError",
            "bad (x.py, line 2)",
            '  File "x.py", line 2\n    def f(:\n          ^\nSyntaxError: bad\n',
            "SyntaxError: bad (at x.py:2)",
        ),
        # torch.multiprocessing.spawn
        (
            "torch.multiprocessing.spawn.ProcessRaisedException",
            f"\n\n-- Process 1 terminated with the following error:\n{PLAIN}",
            f"{OTHER.rpartition('M')[0]}ProcessRaisedException: \n\n-- Process 1 terminated with:\n{PLAIN}",
            "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)",
        ),
        # concurrent.futures
        (
            "ValueError",
            "no such shard: 7",
            f'concurrent.futures.process._RemoteTraceback: \n"""\n{PLAIN}"""\n\nThe above exception was the direct ...',
            "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)",
        ),
    ],
)
def test_the_exception_of_another_process_and_of_a_group_is_found_inside(
    kind: str, message: str, text: str, cause: str
) -> None:
    assert judged(1, raised=noted(kind, message, text)).cause.text.splitlines()[0] == cause


SURVIVED = "ModuleNotFoundError: No module named 'flash_attn' (at load.py:2 in load)"
BEFORE = f"\nbefore that it printed a traceback and went on: {SURVIVED}"
HANDLED = "FileNotFoundError: [Errno 2] No such file: 'a' (at train.py:3 in load)"
PRINTED = PLAIN.replace("ValueError: no such shard: 7", "FileNotFoundError: [Errno 2] No such file: 'a'")
OPTION = "train.py: error: bad --lr"
RAISED_EXIT = Raised(time_ns=1, kind="SystemExit", text="", code=0)
EXITS: list[tuple[str, str, str, Raised, str]] = [
    # (stderr, stdout, where it spoke last, how it left, the cause). A traceback that the script survived:
    (OTHER + "2026-01-01 no quota\n", "", "stderr", left(3), f"2026-01-01 no quota{BEFORE}"),
    (OTHER + "no quota\n", "", "stderr", left(3), f"no quota{BEFORE}"),
    (OTHER, "no quota\n", "both", left(3), f"no quota{BEFORE}"),
    (
        OTHER,
        "epoch 1\n",
        "stderr",
        left(3),
        f"{SURVIVED}\nthe script went on after this and called sys.exit at {PLACE}",
    ),
    # "except: traceback.print_exc(); return 1", and a word after it:
    (
        OTHER + "2026-01-01 ends\n",
        "",
        "stderr",
        left(1),
        f"{SURVIVED}\nthe script then called sys.exit at {PLACE} and last said: 2026-01-01 ends",
    ),
    # In an except block:
    (PRINTED, "", "stderr", left(1, handling=HANDLING), HANDLED),
    # (Hydra)
    (PRINTED + "\nSet HYDRA_FULL_ERROR=1\n", "", "stderr", left(1, handling=HANDLING), HANDLED),
    ("no config\n", "", "stderr", left(2, handling=HANDLING), f"no config\nwhile it was handling {HANDLED}"),
    ("", "", "stderr", left(2, handling=HANDLING), HANDLED),
    ("│ FileNotFoundError: as rich draws it │\n", "", "stderr", left(1, handling=HANDLING), HANDLED),
    (
        "x\n",
        "",
        "stderr",
        left(1, f"failed: {HANDLING.message}", HANDLING),
        f"failed: {HANDLING.message}\nwhile it was handling FileNotFoundError (at train.py:3 in load)",
    ),
    (f"usage: x\n{OPTION}\n", "", "stderr", left(2, handling=HANDLING), OPTION),
    # Without a traceback:
    ("noise\nno data\n", "", "stderr", left(1, "no data\n"), "no data"),
    # "raise SystemExit(3)": the hook saw only that the interpreter ended.
    (OTHER + "no quota\n", "", "stderr", RAISED_EXIT, f"no quota{BEFORE}"),
    (OTHER, "", "stderr", RAISED_EXIT, f"{SURVIVED}\nthe script went on after this and ended by itself"),
    ("", "", "stderr", RAISED_EXIT, "script ended with code 3 without a word"),
    ("", "", "stderr", left(3), f"script ended with code 3 without a word; it called sys.exit at {PLACE}"),
]


@pytest.mark.parametrize(("stderr", "stdout", "last_on", "exit", "cause"), EXITS)
def test_a_script_that_calls_sys_exit_is_told_by_its_own_words(
    stderr: str, stdout: str, last_on: str, exit: Raised, cause: str
) -> None:
    assert judged(exit.code or 3, stderr, stdout, exit, last_on).cause.text == cause


@pytest.mark.parametrize(
    ("stderr", "stdout", "last_on", "cause"),
    [
        ("older noise\n", "no data\n", "stdout", "no data\nits last words on stderr, before that: older noise"),
        ("older noise\n", "no data\n", "both", "no data\nolder noise"),
        ("no data\n", "epoch 1\n", "stderr", "no data"),
        ("", "no data\n", "stderr", "no data"),
        ("no data\n", "", "stdout", "no data"),
    ],
)
def test_the_last_words_are_those_of_the_stream_that_spoke_last(
    stderr: str, stdout: str, last_on: str, cause: str
) -> None:
    assert judged(2, stderr, stdout, None, last_on).cause.text == cause


@pytest.mark.parametrize(
    "remark",
    [
        "[W1122 15:03:28.145 socket.cpp:767] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500",
        "W1122 15:43:41.500000 4903 torch/distributed/run.py:803] Setting OMP_NUM_THREADS",
        "[I1122 15:03:28.145 ProcessGroupNCCL.cpp:1] ProcessGroupNCCL initialized",
        "2026-11-22 15:03:28.145123: W tensorflow/core/x.cc:12] Could not find TensorRT",
        "2026-11-22 15:03:28.145123: I tensorflow/core/x.cc:12] This TensorFlow binary is optimized",
        "Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)",
        "[toolkit] compiler: compiled Linear in 1.7 s, as asked for",
        "/v/lib/python3.11/site-packages/a/b.py:12: FutureWarning: a is old\n  a()",
        # MPICH 5.0.2, a rank whose mpirun is gone.
        "[cli_1]: PMIU_write error; fd=4 buf=:cmd=abort exitcode=3\n:\nsystem msg for write_line failure : Broken pipe",
        "[cli-1]: PMIU_write error; fd=200 buf=:cmd=barrier_in\n:\nsystem msg for write_line failure : Broken pipe\n"
        "Abort(807528207): Fatal error in internal_Finalize: Other MPI error, error stack:\n"
        "internal_Finalize(50)...........: MPI_Finalize failed\nMPID_Finalize(711)..............: ",
    ],
)
def test_what_libraries_remark_is_not_the_cause(remark: str) -> None:
    assert judged(1, remark + "\n").cause.text == "script ended with code 1 without a word"
    assert judged(1, f"no data\n{remark}\n").cause.text == "no data"
    assert judged(signal.SIGKILL, f"no data\n{remark}\n").cause.text.endswith("it last said: no data")


@pytest.mark.parametrize(
    "warning",
    [
        "WARNING:urllib3:retry",
        "INFO:root:saved",
        "[WARNING|trainer.py:812] 2026-11-22 15:03:28,145 >> retry",
        "/opt/ml/code/train.py:3: UserWarning: some warning\n  warnings.warn('some warning')",
    ],
)
def test_a_warning_is_the_cause_only_where_nothing_else_was_said(warning: str) -> None:
    assert judged(2, f"{warning}\n", "no data in /x\n", None, "stderr").cause.text == "no data in /x"
    assert judged(2, f"no data in /x\n{warning}\n").cause.text == "no data in /x"
    assert judged(2, f"{warning}\n").cause.text == warning


def test_a_crash_tells_the_runtimes_words_and_then_pythons_frames() -> None:
    outcome = judged(ABRT, "epoch 1\n" + GLOO + ABORTED)

    first, what, frames = outcome.cause.text.splitlines()
    assert first.startswith("script was killed by SIGABRT (signal 6); terminate called after throwing an instance of")
    assert "200 vs 100" in what
    assert frames.endswith("called from /opt/ml/code/train.py:6 in step")
    assert outcome.cause.primary


def test_a_shell_around_the_crash_changes_nothing_but_who_ended() -> None:
    assert judged(134, GLOO + ABORTED).cause.text.startswith("script ended with code 134; terminate called after")


def test_a_rank_that_crashed_because_it_lost_its_peer_is_not_the_cause() -> None:
    ranks = seen(process("rank 0", 4, ABRT), process("rank 1", 5, 3), process("torchrun", 6, 1))
    tails = {"rank 0": ((LOST + ABORTED).encode(), b""), "rank 1": (b"no data\n", b"")}

    outcome = judge(SAGEMAKER, msgspec.structs.replace(ranks, tails=tails))

    assert (outcome.cause.rank, outcome.cause.text) == (1, "no data")


def test_a_rank_that_raised_an_echo_and_then_aborted_is_still_one() -> None:
    raised = noted("RuntimeError", "[pair.cc:553] Connection closed by peer")

    outcome = judged(ABRT, "terminate called without an active exception\n" + ABORTED, raised=raised)

    assert not outcome.cause.primary


def test_an_assertion_on_the_gpu_is_told_with_the_exception_that_it_became() -> None:
    said = DEVICE.format(n=0) * 9 + PLAIN.replace("no such shard: 7", "CUDA error: device-side assert triggered")

    assert judged(1, said).cause.text.splitlines()[1] == DEVICE.format(n=0).strip()


def test_a_save_that_raises_during_a_stop_is_told_with_its_place() -> None:
    ended = script(1, raised=noted("OSError", "[Errno 28] No space left", PLAIN))

    outcome = judge(SAGEMAKER, msgspec.structs.replace(ended, stopped_by=int(TERM), stopped_at_ns=1))

    assert outcome.status == "stopped"
    assert outcome.cause.text == (
        f"stopped by SIGTERM; script ended with code 1: OSError: [Errno 28] No space left (at {PLACE})"
    )
    assert outcome.cause.traceback == PLAIN.strip()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "RuntimeError: Connection closed by peer"])
def test_what_a_stop_does_to_every_script_is_no_news_of_it(error: str) -> None:
    ended = script(1, PLAIN.replace("ValueError: no such shard: 7", error))

    outcome = judge(SAGEMAKER, msgspec.structs.replace(ended, stopped_by=int(TERM), stopped_at_ns=1))

    assert outcome.cause.text == "stopped by SIGTERM; script ended with code 1"
