"""The cause of a process's failure: from the rank hook's note, and from the process's last words."""

import signal
from typing import Literal

import msgspec
import pytest

from tests.train.verdict.test_crash import ABORTED, DEVICE, GLOO, LOST
from tests.train.verdict.test_judge import ABRT, SAGEMAKER, TERM, make_phase_end, process
from tests.train.verdict.test_traceback import CHAINED, GROUP, OTHER, PLAIN
from toolkit.job.cause import Evidence
from toolkit.job.outcome import Outcome, PhaseEnd
from toolkit.status_pages.pages import Raised, Thrown
from toolkit.train.verdict.judge import judge

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
) -> PhaseEnd:
    return msgspec.structs.replace(
        make_phase_end(process("script", 5, how)),
        tails={"script": (stderr.encode(), stdout.encode())},
        last_on={"script": last_on},
        exceptions={} if raised is None else {"script": raised},
    )


def judged(*of: object, **more: object) -> Outcome:
    return judge(SAGEMAKER, script(*of, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phase_end", "grounds"),
    [
        (script(7), "exit_code"),
        (script(7, "no such shard"), "output"),
        (script(7, stdout="no such shard", last_on="stdout"), "output"),
        (script(3, "no such shard", raised=left(3)), "error"),
        (script(3, raised=left(3)), "error"),
        (script(1, raised=noted("ValueError", "no shard", PLAIN)), "error"),
        (script(1, PLAIN), "error"),
        (script(TERM), "error"),
        (script(ABRT, ABORTED), "error"),
    ],
)
def test_a_cause_rests_on_a_reason_on_last_words_or_on_nothing(phase_end: PhaseEnd, grounds: Evidence) -> None:
    assert judge(SAGEMAKER, phase_end).cause.evidence == grounds


def test_a_long_message_hides_neither_type_nor_place() -> None:
    cut = "Traceback (most recent call last):\n" + "x" * 1000 + "\n... the middle of this text was too long\nxxx\n"

    outcome = judged(1, "x" * 60_000, raised=noted("ValueError", "x" * 8000, cut))

    assert outcome.cause.message == f"ValueError (at {PLACE}): {'x' * 8000}"


def test_a_message_of_many_lines_keeps_its_first_and_empty_ones_do_not_end_it() -> None:
    outcome = judged(1, "line\n" * 9, raised=noted("ValueError", "\n\nno data\n\nin shard 7\n" + "line\n" * 60_000))

    assert outcome.cause.message.splitlines()[:2] == [f"ValueError: no data (at {PLACE})", "in shard 7"]
    assert len(outcome.cause.message.splitlines()) == 30


def test_what_is_noted_counts_and_not_another_traceback_that_was_printed() -> None:
    outcome = judged(1, OTHER, raised=noted("ValueError", "no shard", PLAIN))

    assert outcome.cause.message == f"ValueError: no shard (at {PLACE})"
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
        # joblib, which sends a function as a value
        (
            "ValueError",
            "no such shard: 7",
            'joblib.externals.loky.process_executor._RemoteTraceback: \n"""\nTraceback (most recent call last):\n'
            '  File "<dynamic-code>", line 4, in f\nValueError: no such shard: 7\n"""\n\nThe above exception ...',
            f"ValueError: no such shard: 7 (at {PLACE}, raised in <dynamic-code>:4 in f)",
        ),
        # ray.get
        (
            "ray.exceptions.RayTaskError(ValueError)",
            "\x1b[36mray::load()\x1b[39m (pid=71, ip=10.0.0.1)\n"
            + "".join(f'  File "/site-packages/ray/x.py", line {line}, in call\n    call()\n' for line in range(1, 40))
            + '  File "/opt/ml/code/train.py", line 5, in load\n    raise ValueError(shard)\n'
            + "ValueError: no such shard: 7",
            "",
            "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in load)",
        ),
    ],
)
def test_the_exception_of_another_process_and_of_a_group_is_found_inside(
    kind: str, message: str, text: str, cause: str
) -> None:
    assert judged(1, raised=noted(kind, message, text)).cause.message.splitlines()[0] == cause


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
    assert judged(exit.code or 3, stderr, stdout, exit, last_on).cause.message == cause


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
    assert judged(2, stderr, stdout, None, last_on).cause.message == cause


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
    assert judged(1, remark + "\n").cause.message == "script ended with code 1 without a word"
    assert judged(1, f"no data\n{remark}\n").cause.message == "no data"
    assert judged(signal.SIGKILL, f"no data\n{remark}\n").cause.message.endswith("it last said: no data")


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
    assert judged(2, f"{warning}\n", "no data in /x\n", None, "stderr").cause.message == "no data in /x"
    assert judged(2, f"no data in /x\n{warning}\n").cause.message == "no data in /x"
    assert judged(2, f"{warning}\n").cause.message == warning


def test_a_crash_tells_the_runtimes_words_and_then_pythons_frames() -> None:
    outcome = judged(ABRT, "epoch 1\n" + GLOO + ABORTED)

    first, reason, frames = outcome.cause.message.splitlines()
    assert first.startswith("script was killed by SIGABRT (signal 6); terminate called after throwing an instance of")
    assert "200 vs 100" in reason
    assert frames.endswith("called from /opt/ml/code/train.py:6 in step")
    assert outcome.cause.primary


def test_a_shell_around_the_crash_changes_nothing_but_who_ended() -> None:
    assert judged(134, GLOO + ABORTED).cause.message.startswith("script ended with code 134; terminate called after")


def test_a_rank_that_crashed_because_it_lost_its_peer_is_not_the_cause() -> None:
    ranks = make_phase_end(process("rank 0", 4, ABRT), process("rank 1", 5, 3), process("torchrun", 6, 1))
    tails = {"rank 0": ((LOST + ABORTED).encode(), b""), "rank 1": (b"no data\n", b"")}

    outcome = judge(SAGEMAKER, msgspec.structs.replace(ranks, tails=tails))

    assert (outcome.cause.rank, outcome.cause.message) == (1, "no data")


def test_a_rank_that_raised_an_echo_and_then_aborted_is_still_one() -> None:
    raised = noted("RuntimeError", "[pair.cc:553] Connection closed by peer")

    outcome = judged(ABRT, "terminate called without an active exception\n" + ABORTED, raised=raised)

    assert not outcome.cause.primary


def test_an_assertion_on_the_gpu_is_told_with_the_exception_that_it_became() -> None:
    stderr = DEVICE.format(n=0) * 9 + PLAIN.replace("no such shard: 7", "CUDA error: device-side assert triggered")

    assert judged(1, stderr).cause.message.splitlines()[1] == DEVICE.format(n=0).strip()


def test_a_save_that_raises_during_a_stop_is_told_with_its_place() -> None:
    phase_end = script(1, raised=noted("OSError", "[Errno 28] No space left", PLAIN))

    outcome = judge(SAGEMAKER, msgspec.structs.replace(phase_end, stopped_by=int(TERM), stopped_at_ns=1))

    assert outcome.status == "stopped"
    assert outcome.cause.message == (
        f"stopped by SIGTERM; script ended with code 1: OSError: [Errno 28] No space left (at {PLACE})"
    )
    assert outcome.cause.traceback == PLAIN.strip()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "RuntimeError: Connection closed by peer"])
def test_what_a_stop_does_to_every_script_is_no_news_of_it(error: str) -> None:
    phase_end = script(1, PLAIN.replace("ValueError: no such shard: 7", error))

    outcome = judge(SAGEMAKER, msgspec.structs.replace(phase_end, stopped_by=int(TERM), stopped_at_ns=1))

    assert outcome.cause.message == "stopped by SIGTERM; script ended with code 1"


PORT = "The server socket has failed to listen. port: 7777, name: EADDRINUSE, message: address already in use"
LAZY = noted(
    "ModuleNotFoundError",
    "Could not import module 'Trainer'. Are this object's requirements defined correctly?",
    behind=[
        {"kind": "RuntimeError", "message": "Failed to import transformers.trainer", "link": "cause"},
        {
            "kind": "torch.distributed.DistNetworkError",
            "message": PORT,
            "link": "cause",
            "frames": ["/x/site-packages/torch/rendezvous.py:4 in f", "/opt/ml/code/net.py:3 in join"],
        },
    ],
)


def test_an_exception_is_told_with_the_first_of_its_chain_whose_advice_counts() -> None:
    outcome = judged(1, raised=LAZY)

    assert outcome.cause.message.splitlines() == [
        "ModuleNotFoundError: Could not import module 'Trainer'. Are this object's requirements defined correctly?"
        f" (at {PLACE})",
        f"caused by torch.distributed.DistNetworkError: {PORT}"
        " (at /opt/ml/code/net.py:3 in join, raised in torch/rendezvous.py:4 in f)",
    ]
    assert "MASTER_PORT" in outcome.cause.advice


@pytest.mark.parametrize(
    ("links", "lines"),
    [
        (["context"], ["raised while handling E0: m0"]),
        (["context", "cause"], ["raised while handling E1: m1"]),
        (["cause", "context", "context"], ["caused by E0: m0", "which was raised while handling E2: m2"]),
        (["cause", "cause"], ["caused by E1: m1"]),
        (["", ""], []),
    ],
)
def test_what_was_handled_is_not_called_the_cause(links: list[str], lines: list[str]) -> None:
    behind = [{"kind": f"E{index}", "message": f"m{index}", "link": link} for index, link in enumerate(links)]

    assert judged(1, raised=noted("ValueError", "bad", behind=behind)).cause.message.splitlines()[1:] == lines


def test_the_first_of_a_chain_is_told_without_the_message_that_the_last_repeats() -> None:
    raised = noted(
        "RuntimeError", "save: disk full", behind=[{"kind": "OSError", "message": "disk full", "link": "cause"}]
    )

    assert judged(1, raised=raised).cause.message.endswith("\ncaused by OSError")


def test_a_long_exception_leaves_room_for_the_first_of_its_chain() -> None:
    raised = noted(
        "ValidationError",
        "field\n" * 30 + "x" * 2000,
        behind=[{"kind": "OSError", "message": "y" * 900, "link": "cause"}],
    )

    text = judged(1, raised=raised).cause.message

    assert len(text) < 750
    assert "\ncaused by OSError: yyy" in text


def test_a_printed_chain_is_told_as_a_noted_one() -> None:
    outcome = judged(1, CHAINED)

    assert outcome.cause.message.splitlines() == [
        "RuntimeError: gave up (at train.py:6 in <module>)",
        "caused by ZeroDivisionError: division by zero (at train.py:4 in <module>)",
        "which was raised while handling KeyError: 'k' (at train.py:2 in <module>)",
    ]


@pytest.mark.parametrize(
    "earlier",
    ["No module named 'triton'", "CUDA out of memory", "Address already in use", "No space left on device"],
)
def test_what_was_said_before_an_exception_gets_no_advice(earlier: str) -> None:
    assert judged(1, f"warning: {earlier}\n{PLAIN}", raised=noted("ValueError", "bad", PLAIN)).cause.advice == ""
    assert judged(1, f"warning: {earlier}\n{PLAIN}").cause.advice == ""
    assert judged(3, f"{OTHER}stopping: bad\n", raised=left(3)).cause.advice == ""
    assert judged(3, f"{earlier}\nstopping\n").cause.advice != ""


REPORT = """\
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 12, in main
    subprocess.run(command, check=True)
  File "/usr/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['python', 'real.py']' returned non-zero exit status {code}.
"""
BY = "(CalledProcessError in train.py:12)"
RUN = ["/usr/lib/python3.11/subprocess.py:571 in run", "/opt/ml/code/train.py:12 in main"]


def report(code: int = 1, stderr: str = "") -> Raised:
    message = f"Command '['python', 'real.py']' returned non-zero exit status {code}."
    text = REPORT.format(code=code)
    return noted("subprocess.CalledProcessError", message, text, frames=RUN, time_ns=9, captured_output=stderr)


def child(kind: str, message: str, pid: int, parent: int, time_ns: int, **more: object) -> Raised:
    return noted(kind, message, f"Traceback of {pid}", pid=pid, parent=parent, time_ns=time_ns, **more)


def wrapped(raised: Raised | None, *children: Raised, stderr: str = "", code: int = 1) -> Outcome:
    phase_end = script(1, stderr + REPORT.format(code=code), raised=raised)
    return judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=children))


ME = 70  # The script's pid (process()).
FAILED = child("ChildFailedError", "real.py FAILED exitcode : 1", 80, ME, 8)


@pytest.mark.parametrize(
    ("children", "cause"),
    [
        ([child("ValueError", "bad", 80, ME, 5)], f"ValueError: bad (at {PLACE}) {BY}"),
        # A shell in between, of which nothing is known.
        ([child("ValueError", "bad", 80, 79, 5)], f"ValueError: bad (at {PLACE}) {BY}"),
        # An earlier step, whose failure was handled.
        (
            [child("KeyError", "old", 78, ME, 3), child("ValueError", "bad", 80, ME, 5)],
            f"ValueError: bad (at {PLACE}) {BY}",
        ),
        # torchrun: the first rank that did not just lose another one.
        (
            [
                FAILED,
                child("RuntimeError", "Connection closed by peer", 81, 80, 5),
                child("ValueError", "bad", 82, 80, 6),
                child("ValueError", "later", 83, 80, 7),
            ],
            f"ValueError: bad (at {PLACE}) {BY}",
        ),
        # deepspeed, accelerate: launchers that end with their rank's code.
        (
            [child("SystemExit", "", 80, ME, 7), child("ValueError", "bad", 81, 80, 5)],
            f"ValueError: bad (at {PLACE}) {BY}",
        ),
        # A wrapper of a wrapper.
        (
            [child("subprocess.CalledProcessError", "exit status 1", 80, ME, 7), child("ValueError", "bad", 81, 80, 5)],
            f"ValueError: bad (at {PLACE}) {BY}",
        ),
        ([child("SystemExit", "no data", 80, ME, 5)], f"sys.exit: no data (at {PLACE}) {BY}"),
    ],
)
def test_a_script_that_only_reports_a_childs_failure_fails_for_what_ended_the_child(
    children: list[Raised], cause: str
) -> None:
    outcome = wrapped(report(), *children)

    assert outcome.cause.message == cause
    assert "CalledProcessError" in outcome.cause.traceback


def test_a_child_that_failed_with_another_code_is_not_the_one_that_is_reported() -> None:
    outcome = wrapped(report(4), child("ValueError", "handled", 80, ME, 5), stderr="no such table\n", code=4)

    assert outcome.cause.message.startswith("subprocess.CalledProcessError: Command")
    assert outcome.cause.message.endswith("\nthe command last said: no such table")


def test_a_childs_exception_is_read_from_what_was_printed_or_captured_where_the_hook_saw_none() -> None:
    child_error = "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)"

    assert wrapped(report(), stderr=PLAIN).cause.message == f"{child_error} {BY}"
    assert wrapped(None, stderr=PLAIN).cause.message == f"{child_error} {BY}"
    assert wrapped(report(stderr=PLAIN), stderr=OTHER).cause.message == f"{child_error} {BY}"
    assert wrapped(report(4, stderr="cannot connect\n"), code=4).cause.message.endswith("last said: cannot connect")


def test_a_long_command_hides_neither_its_place_nor_what_it_said() -> None:
    raised = noted(
        "subprocess.CalledProcessError", f"Command '{'x' * 3000}' returned non-zero exit status 4.", frames=RUN
    )

    text = judged(1, "no such table\n", raised=raised).cause.message

    assert "train.py:12 in main" in text
    assert text.endswith("last said: no such table")
    assert len(text) < 700


def test_a_wrapped_loss_of_another_host_is_no_cause_of_its_own() -> None:
    outcome = wrapped(report(), child("RuntimeError", "Connection closed by peer", 80, ME, 5))

    assert not outcome.cause.primary


# As torchrun of torch 2.13 wrote it, with fewer of its frames.
TORCHRUN = """*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
*****************************************
W1129 08:02:25.9 71 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 80
E1129 08:02:25.9 71 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 2
Traceback (most recent call last):
  File "/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {table}"""
TABLE = (
    "\n=====\nreal.py FAILED\n-----\nFailures:\n"
    + "".join(
        f"[{index}]:\n  time      : 2026\n  host      : localhost\n  rank      : {index} (local_rank: {index})\n"
        "  exitcode  : -15 (pid: 80)  (SIGTERM)\n  error_file: <N/A>\n  traceback : Signal 15 received\n"
        for index in range(3, 8)
    )
    + "-----\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026\n  host      : localhost\n"
    "  rank      : 2 (local_rank: 2)\n  exitcode  : {code} (pid: 82) \n  error_file: <N/A>\n  traceback : ...\n=====\n"
)
ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


@pytest.mark.parametrize(
    ("code", "printed", "first", "more"),
    [
        (3, "no quota left\n", "ended with code 3", ["before that the ranks last said: no quota left"]),
        (-9, "", "was killed by SIGKILL (signal 9)", []),
        (
            -6,
            ABORTED,
            "was killed by SIGABRT (signal 6)",
            judged(ABRT, ABORTED).cause.message.splitlines()[1:],
        ),
    ],
)
@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_of_a_torchrun_that_the_script_started_the_rank_that_failed_first_is_named(
    code: int, printed: str, first: str, more: list[str], stream: str
) -> None:
    output = printed + TORCHRUN.format(code=code, table=TABLE.format(code=code))

    cause = judged(1, **{stream: output}).cause

    assert cause.message.splitlines() == [f"{ELASTIC}: rank 2 of real.py failed first: it {first}", *more]


def test_the_exception_in_torchruns_table_comes_before_the_table() -> None:
    table = TABLE.format(code=1).replace("traceback : ...", f"traceback : {PLAIN}")

    text = judged(1, raised=noted(ELASTIC, table, TORCHRUN.format(code=1, table=table))).cause.message

    assert text.startswith("ValueError: no such shard: 7")


def test_what_a_rank_raised_is_not_told_again_as_its_last_words() -> None:
    child_error = child("ValueError", "no such shard: 7", 80, ME, 5)
    phase_end = script(1, PLAIN + TORCHRUN.format(code=1, table=TABLE.format(code=1)))

    text = judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=(child_error,))).cause.message

    assert text.count("no such shard: 7") == 1


KILLED = f"{ELASTIC}: rank 2 of real.py failed first: it was killed by SIGKILL (signal 9)"
BAD = child("ValueError", "bad", 81, 80, 5)
CLOSED = child("RuntimeError", "Connection closed by peer", 82, 80, 6)


@pytest.mark.parametrize(
    ("code", "printed", "ranks", "first"),
    [
        (-9, "", [], f"{KILLED} {BY}"),
        (-9, f"{PLAIN}went on\n", [CLOSED], f"{KILLED} {BY}"),
        (1, "", [BAD, CLOSED], f"ValueError: bad (at {PLACE}) {BY}"),
        (-6, "", [BAD, CLOSED], f"ValueError: bad (at {PLACE}) {BY}"),
        # os._exit(1) after traceback.print_exc().
        (1, f"{PLAIN}\n", [], f"ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main) {BY}"),
    ],
)
def test_a_wrapper_of_such_a_torchrun_names_the_rank_too(
    code: int, printed: str, ranks: list[Raised], first: str
) -> None:
    table = TABLE.format(code=code)
    text = TORCHRUN.format(code=code, table=table)
    recorded = msgspec.structs.replace(child(ELASTIC, table, 80, ME, 7), text=text)

    cause = wrapped(report(), recorded, *ranks, stderr=printed + text).cause

    assert cause.message.splitlines()[0] == first
    assert cause.primary


@pytest.mark.parametrize(
    ("code", "ranks", "first"),
    [
        (-9, [], KILLED),
        (-9, [CLOSED], KILLED),
        (1, [BAD, CLOSED], f"ValueError: bad (at {PLACE}) (ChildFailedError)"),
        (1, [], "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main) (ChildFailedError)"),
    ],
)
def test_a_script_that_runs_torchrun_in_its_own_process_names_the_rank_too(
    code: int, ranks: list[Raised], first: str
) -> None:
    table = TABLE.format(code=code)
    text = TORCHRUN.format(code=code, table=table)
    children = tuple(msgspec.structs.replace(item, parent=ME) for item in ranks)
    phase_end = script(1, f"{PLAIN}\nwent on\n{text}", raised=noted(ELASTIC, table, text, time_ns=9))

    cause = judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=children)).cause

    assert cause.message.splitlines()[0] == first


def test_a_script_that_ends_with_its_childs_code_names_the_childs_exception() -> None:
    phase_end = script(1, PLAIN, raised=left(1))
    child_error = child("ValueError", "no such shard: 7", 80, ME, 5)

    outcome = judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=(child_error,)))

    assert outcome.cause.message.splitlines()[1] == (
        f"it ended a process that the script had started; the script then called sys.exit at {PLACE}"
    )


def test_a_script_that_ends_with_the_code_of_a_child_of_multiprocessing_names_the_childs_exception() -> None:
    cause = judged(1, f"Process SpawnProcess-1:\n{PLAIN}", raised=left(1)).cause.message

    assert cause.splitlines()[1] == (
        f"it ended a process that the script had started; the script then called sys.exit at {PLACE}"
    )


def test_a_pool_that_broke_names_why_its_worker_could_not_send_or_read_an_exception() -> None:
    sent = f"\n'''\n{PLAIN}'''"
    remote = Thrown(kind="concurrent.futures.process._RemoteTraceback", message=sent, link="cause")
    raised = noted(
        "concurrent.futures.process.BrokenProcessPool",
        "A process was terminated abruptly.",
        f"{remote.kind}: {sent}\n\nThe above exception was the direct ...",
        behind=(msgspec.to_builtins(remote),),
    )

    cause = judged(1, raised=raised).cause.message

    assert cause.splitlines()[1] == "caused by ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)"


def test_an_exception_that_the_hook_did_not_see_is_not_said_to_be_survived() -> None:
    assert (
        judged(1, PLAIN, raised=RAISED_EXIT).cause.message
        == "ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)"
    )


def test_an_exception_that_may_only_say_that_a_child_failed_is_told_with_the_childs() -> None:
    expected = f"before that a process that it had started ended by ValueError: bad (at {PLACE})"
    raised = noted("RuntimeError", "training failed")
    phase_end = msgspec.structs.replace(
        script(1, raised=raised), child_exceptions=(child("ValueError", "bad", 80, ME, 5),)
    )
    worker = f"Process Process-1:\n{PLAIN}{OTHER.replace('ModuleNotFoundError', 'RuntimeError')}"

    assert judge(SAGEMAKER, phase_end).cause.message.splitlines()[1:] == [expected]
    assert (
        judged(1, worker)
        .cause.message.splitlines()[1]
        .endswith("ended by ValueError: no such shard: 7 (at /opt/ml/code/train.py:5 in main)")
    )
    assert judged(1, worker.replace("Process Process-1:", "warning:")).cause.message.count("\n") == 0


def test_the_exception_of_a_child_behind_a_shell_is_told() -> None:
    expected = f"before that a process that it had started ended by ValueError: bad (at {PLACE})"
    behind = child("ValueError", "bad", 82, 81, 5)  # 81: sh, of os.system
    phase_end = script(1, raised=noted("RuntimeError", "training failed"))

    assert judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=(behind,))).cause.message.endswith(
        expected
    )


@pytest.mark.parametrize("raised", [None, RAISED_EXIT, left(1)])
def test_a_script_that_ends_without_a_word_is_reported_with_the_exception_of_its_child(raised: Raised | None) -> None:
    child_error = child("ValueError", "bad", 80, ME, 5)
    phase_end = msgspec.structs.replace(script(1, raised=raised), child_exceptions=(child_error,))

    outcome = judge(SAGEMAKER, phase_end)

    assert outcome.cause.message.splitlines()[0].startswith("script ended with code 1 without a word")
    assert outcome.cause.message.splitlines()[1:] == [
        f"before that a process that it had started ended by ValueError: bad (at {PLACE})"
    ]
    assert outcome.cause.traceback == "Traceback of 80"


def test_what_a_shell_and_a_launcher_say_after_a_childs_exception_is_left_out() -> None:
    phase_end = script(1, PLAIN + "\n" + "====\n" * 40)
    rank = child("ValueError", "no such shard: 7", 81, 80, 5)

    assert judge(SAGEMAKER, phase_end).cause.message.endswith("it last said: ====")
    assert judge(SAGEMAKER, msgspec.structs.replace(phase_end, child_exceptions=(rank,))).cause.message.count("\n") == 0
