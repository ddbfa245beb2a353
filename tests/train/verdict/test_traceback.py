"""The cause is found in the output of a process. Texts are as Python (3.11, 3.13), torch and tqdm write them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.train.verdict.traceback import Traceback, find_last

PLAIN = """\
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 9, in <module>
    main()
  File "/opt/ml/code/train.py", line 5, in main
    raise ValueError("no such shard: 7")
ValueError: no such shard: 7
"""
OTHER = """\
Traceback (most recent call last):
  File "load.py", line 2, in load
    import flash_attn
ModuleNotFoundError: No module named 'flash_attn'
"""
CHAINED = """\
Traceback (most recent call last):
  File "train.py", line 2, in <module>
    d["k"]
    ~^^^^^
KeyError: 'k'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 4, in <module>
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 6, in <module>
    raise RuntimeError("gave up") from error
RuntimeError: gave up
"""
USER_CODE = """\
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 50, in <module>
    loss = step(images)
           ^^^^^^^^^^^^
  File "/tmp/__autograph_generated_filed1jf7yzj.py", line 33, in tf__step
    raise
ValueError: in user code:

    File "/opt/ml/code/train.py", line 43, in step  *
        return strategy.run(replica, (images,))

    ValueError: destinations can not be empty

"""
COLOURED = (
    "Traceback (most recent call last):\n"
    '  File \x1b[35m"train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
    "    \x1b[31mf\x1b[0m\x1b[1;31m(1)\x1b[0m\n"
    "    \x1b[31m~\x1b[0m\x1b[1;31m^^^\x1b[0m\n"
    "\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by zero\x1b[0m\n"
)
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 7, in <module>
  |     raise ExceptionGroup("many", errors)
  | ExceptionGroup: many (3 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 4, in <module>
    |     try: f()
    |          ^^^
    |   File "train.py", line 2, in f
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | TypeError: two
    +---------------- 3 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | KeyError: 'k'
      +------------------------------------
"""
CUDA = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    x.cuda()
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
I would pass CUDA_LAUNCH_BLOCKING=1.

"""
NOT_COMPILED = """\
  File "/opt/ml/code/train.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax
"""
IMPORTED_NOT_COMPILED = """\
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import model
  File "/opt/ml/code/model.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax
"""


def find_traceback(text: str | bytes) -> Traceback:
    traceback = find_last(text.encode() if isinstance(text, str) else text)
    assert traceback is not None
    return traceback


def by_rank(text: str, rank: int) -> str:
    """Return *text* as torch.distributed's hook writes it: empty lines stay without a tag."""
    return "".join(f"[rank{rank}]: {line}" if line.strip() else line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("text", "error", "place"),
    [
        (PLAIN, "ValueError: no such shard: 7", "/opt/ml/code/train.py:5 in main"),
        (CHAINED, "RuntimeError: gave up", "train.py:6 in <module>"),
        (COLOURED, "ZeroDivisionError: division by zero", "train.py:3 in <module>"),
        (PLAIN.replace("\n", "\r\n"), "ValueError: no such shard: 7", "/opt/ml/code/train.py:5 in main"),
        (by_rank(PLAIN, 1), "ValueError: no such shard: 7", "/opt/ml/code/train.py:5 in main"),
        (NOT_COMPILED, "SyntaxError: invalid syntax", "/opt/ml/code/train.py:2"),
        (IMPORTED_NOT_COMPILED, "SyntaxError: invalid syntax", "/opt/ml/code/model.py:2"),
        (PLAIN.replace("ValueError: no such shard: 7", "KeyboardInterrupt"), "KeyboardInterrupt", None),
        (PLAIN.replace("ValueError", "torch.OutOfMemoryError"), "torch.OutOfMemoryError: no such shard: 7", None),
        (PLAIN.replace("ValueError", "__main__.f.<locals>.Odd"), "__main__.f.<locals>.Odd: no such shard: 7", None),
        (PLAIN.replace("ValueError", "Überlauf"), "Überlauf: no such shard: 7", None),
        (GROUP, None, "train.py:2 in f"),
        (OTHER + "going on without it\n" + PLAIN, "ValueError: no such shard: 7", None),
        (PLAIN + "\n" * 5 + "wandb: Run summary:\nwandb: loss 0.3\n", "ValueError: no such shard: 7", None),
        (PLAIN.rstrip("\n"), "ValueError: no such shard: 7", None),
    ],
)
def test_the_error_and_its_place_are_found(text: str, error: str | None, place: str | None) -> None:
    traceback = find_traceback(text)

    assert error is None or traceback.error == error
    assert place is None or traceback.place == place


@pytest.mark.parametrize("text", [PLAIN, CHAINED, CUDA, NOT_COMPILED, IMPORTED_NOT_COMPILED, GROUP])
def test_the_text_is_the_whole_traceback_as_printed(text: str) -> None:
    traceback = find_traceback("epoch 1\nepoch 2\n" + text)

    assert traceback.text == text.strip("\n")


@pytest.mark.parametrize("text", [PLAIN, CHAINED, GROUP])
def test_an_indented_traceback_is_one(text: str) -> None:
    indented = "".join(f"      {line}" for line in text.splitlines(keepends=True))

    assert find_traceback(indented).error == find_traceback(text).error


def test_the_members_of_an_exception_group_are_named() -> None:
    assert find_traceback(GROUP).error.splitlines() == [
        "ExceptionGroup: many (3 sub-exceptions)",
        "ValueError: one",
        "TypeError: two",
        "ExceptionGroup: inner (1 sub-exception)",
        "KeyError: 'k'",
    ]


def test_a_message_of_several_lines_is_whole() -> None:
    assert find_traceback(CUDA).error.splitlines() == CUDA.strip().splitlines()[-3:]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-21 03:28:14,001 INFO saved",
        "[2026-11-21 03:28:14] saved",
        "WARNING:root:late",
        "[W1121 03:28:14.5 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called",
        "[W socket.cpp:464] cannot be resolved",
        "I1121 03:28:14.5 agent.py:12] done",
        "Exception ignored in: <function f at 0x7f>",
        "-" * 74,
    ],
)
def test_a_log_line_behind_it_is_no_part_of_the_message(line: str) -> None:
    traceback = find_traceback(f"{PLAIN}{line}\nand more\n")

    assert traceback.error == "ValueError: no such shard: 7"
    assert traceback.after == 2


def test_ranks_that_write_at_the_same_time_are_told_apart() -> None:
    first, second = by_rank(CHAINED, 0).splitlines(), by_rank(PLAIN, 3).splitlines()
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + first[len(second) :]

    traceback = find_traceback("\n".join(mixed) + "\n")

    assert traceback.error == "RuntimeError: gave up"
    assert "no such shard" not in traceback.text


@pytest.mark.parametrize("bar", ["", "\r 10%|x  | 1/10\r"])
def test_a_progress_bar_that_left_its_line_open_does_not_hide_it(bar: str) -> None:
    traceback = find_traceback(f"{bar} 45%|████▌     | 45/100 [00:01<00:01, 40.1it/s]{PLAIN}")

    assert traceback.text == PLAIN.rstrip()


def test_a_progress_bar_that_was_drawn_over_leaves_its_last_state() -> None:
    traceback = find_traceback(f"\r 1%\r 2%\r{PLAIN}")

    assert traceback.text == PLAIN.rstrip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss: 3\n",
        PLAIN[len("Traceback") :],
        PLAIN[PLAIN.index("  File") + 3 :],
        PLAIN[: PLAIN.index("ValueError")],
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\nand then nothing more\n",
        "Error: usage\n  File handling is hard\n",
        "Exception ignored in: <function _del at 0x7f>\n" + OTHER,
        "--- Logging error ---\n" + OTHER,
    ],
)
def test_there_is_none_where_none_is_whole_or_none_ended_anything(text: str) -> None:
    assert find_last(text.encode()) is None


@pytest.mark.parametrize(
    "behind",
    [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n" + OTHER,
        "--- Logging error ---\n" + OTHER + "Call stack:\nMessage: 'x'\nArguments: (1,)\n",
        "Error in atexit._run_exitfuncs:\n" + OTHER,
        "Exception in thread Thread-1 (pin):\n" + OTHER,
        "Process SpawnProcess-2:\n" + OTHER,
        PLAIN.replace("ValueError", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"),
    ],
)
def test_what_python_and_launchers_say_on_their_way_out_is_not_the_cause(behind: str) -> None:
    traceback = find_traceback(CHAINED + behind)

    assert traceback.error == "RuntimeError: gave up"


def test_the_traceback_of_a_thread_is_the_cause_if_there_is_no_other() -> None:
    assert find_traceback("Exception in thread Thread-1 (pin):\n" + OTHER).error.startswith("ModuleNotFoundError")


def test_of_a_chain_that_the_tails_start_cut_the_rest_is_told() -> None:
    traceback = find_traceback(CHAINED[CHAINED.index("d[") :])

    assert traceback.text.startswith("Traceback")
    assert "KeyError" not in traceback.text
    assert traceback.error == "RuntimeError: gave up"


def test_of_tensorflows_user_code_the_true_error_and_place_are_told() -> None:
    """AutoGraph's error line says only where it happened: the message is behind it, indented (TensorFlow 2.21)."""
    traceback = find_traceback(USER_CODE + "epoch 1\n")

    assert traceback.error == "ValueError: destinations can not be empty"
    assert traceback.place == "/opt/ml/code/train.py:43 in step"
    assert traceback.text == USER_CODE.rstrip()
    assert traceback.after == 1


def test_lines_written_behind_it_are_counted() -> None:
    assert find_traceback(OTHER + "\nepoch 1\n\nepoch 2\n").after == 2
    assert find_traceback(by_rank(OTHER, 0) + by_rank("a\nb\n", 1)).after == 0


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise RuntimeError('told')", "RuntimeError: told"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("if 1:\npass", "IndentationError: expected an indented block after 'if' statement on line 1"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("try:\n  1/0\nexcept Exception as e:\n  raise OSError(5, 'no') from e", "OSError: [Errno 5] no"),
        ("class A:\n  def __del__(s): raise OSError\na = A()\nraise KeyError('x')", "KeyError: 'x'"),
        ("import threading as t\nx = t.Thread(target=lambda: 1/0)\nx.start()\nx.join()\nint('x')", "ValueError: "),
    ],
)
def test_what_this_python_writes_is_read(program: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program + "\n")
    environ = {**os.environ, "PYTHON_COLORS": "1"}
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environ, capture_output=True)

    traceback = find_traceback(done.stderr)

    assert traceback.error.startswith(error)
    assert "train.py" in traceback.place


@given(st.binary(max_size=400), st.integers(0, len(CHAINED)), st.integers(0, len(GROUP)))
def test_any_bytes_are_borne(junk: bytes, chained_from: int, group_to: int) -> None:
    find_last(junk + CHAINED[chained_from:].encode() + junk + GROUP[:group_to].encode() + junk)
