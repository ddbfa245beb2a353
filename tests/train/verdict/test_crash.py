"""Last words of a process that a fatal signal ends. Texts are those of torch 2.13, glibc 2.36, CUDA 12 and others."""

import pytest

from toolkit.train.verdict.collateral import is_collateral
from toolkit.train.verdict.crash import find_assertion, read_crash

GLOO = """\
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. \
200 vs 100. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?
"""
LOST = """\
terminate called after throwing an instance of 'gloo::IoException'
  what():  [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1
"""
ABORTED = """\
Fatal Python error: Aborted

Thread 0x00007f509a69d000 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f509a69db80 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/opt/ml/code/train.py", line 6 in step
  File "/opt/ml/code/train.py", line 10 in <module>

Extension modules: numpy._core._multiarray_umath, numpy.linalg._umath_linalg, torch._C (total: 3)
"""
CURRENT = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f8729333b80 [python3] (most recent call first):
  File "/opt/ml/code/load.py", line 4 in read
  File "/opt/ml/code/train.py", line 9 in <module>

Thread 0x00007f8729333000 [python3] (most recent call first):
  File "/opt/ml/code/train.py", line 70 in wait

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x31 [0x5f]
"""
DEVICE = (
    "../aten/cuda/Indexing.cu:1553: indexSelectSmallIndex: block: [0,0,0], thread: [{n},0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.\n"
)
EPOCHS = "".join(f"epoch {n}\n" for n in range(30))


def test_the_runtimes_words_come_first_and_then_the_frames_up_to_the_users() -> None:
    crash = read_crash((EPOCHS + GLOO + ABORTED).encode())

    assert crash is not None
    assert crash.words == tuple(GLOO.splitlines())
    assert [place.rpartition("/")[2] for place in crash.places] == [
        "distributed_c10d.py:3252 in all_reduce",
        "c10d_logger.py:83 in wrapper",
        "train.py:6 in step",
    ]
    assert "Extension modules" not in "\n".join((*crash.words, *crash.places, crash.stacks))
    assert crash.output_before.decode().splitlines() == EPOCHS.splitlines()


def test_of_several_threads_the_one_that_crashed_is_told() -> None:
    crash = read_crash((EPOCHS + CURRENT).encode())

    assert crash is not None
    assert crash.words == ()
    assert crash.places == ("/opt/ml/code/load.py:4 in read", "/opt/ml/code/train.py:9 in <module>")


def test_where_no_thread_has_frames_there_are_none() -> None:
    crash = read_crash(
        b"Fatal Python error: Aborted\n\nCurrent thread 0x0071 (most recent call first):\n  <no Python frame>\n"
    )

    assert crash is not None
    assert (crash.words, crash.places) == ((), ())


@pytest.mark.parametrize(
    "words",
    [
        "terminate called without an active exception",
        "pure virtual method called\nterminate called without an active exception",
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: no data",
        "double free or corruption (out)",
        "free(): invalid pointer",
        "malloc(): corrupted top size",
        "malloc(): unaligned tcache chunk detected",
        "corrupted size vs. prev_size",
        "munmap_chunk(): invalid pointer",
        "*** stack smashing detected ***: terminated",
        "*** buffer overflow detected ***: terminated",
        "Fatal glibc error: malloc assertion failure in sysmalloc: (old_top == initial_top (av))",
        "python: model.c:12: forward: Assertion `x > 0' failed.",
        'a.out: src/a.cpp:7: int f(int): Assertion `n < 3 && "too many"\' failed.',
        "F1121 03:28:14.512345    71 loader.cc:12] Check failed: n > 0 (0 vs. 0)",
        "2026-11-21 03:28:14.512345: F tensorflow/core/platform/x.cc:12] Check failed: n > 0",
        "thread 'main' panicked at src/main.rs:2:5:\nindex out of bounds: the len is 3 but the index is 7",
        "thread '<unnamed>' (71) panicked at src/lib.rs:9:1:\nno data",
        "memory allocation of 8589934592 bytes failed",
        "==71==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010",
        "OMP: Error #15: Initializing libiomp5.so, but found libgomp.so.1 already initialized.",
        "[rank1]: terminate called after throwing an instance of 'c10::Error'",
    ],
)
@pytest.mark.parametrize("dump", [ABORTED, ""])
def test_the_words_of_every_runtime_are_known_with_pythons_stacks_and_without(words: str, dump: str) -> None:
    crash = read_crash(f"{EPOCHS}{words}\n{dump}".encode())

    assert crash is not None
    assert crash.words == tuple(words.splitlines())


def test_pythons_own_fatal_error_is_told() -> None:
    crash = read_crash(ABORTED.replace("Aborted", "none_dealloc: deallocating None").encode())

    assert crash is not None
    assert crash.words == ("Fatal Python error: none_dealloc: deallocating None",)


def test_of_the_assertions_of_a_whole_block_of_threads_one_is_told() -> None:
    errors = "".join(DEVICE.format(n=n) for n in range(200))
    abort_text = (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert\n"
    )

    crash = read_crash((EPOCHS + errors + abort_text + ABORTED).encode())

    assert crash is not None
    assert crash.words == (DEVICE.format(n=0).strip(), *abort_text.splitlines())
    assert find_assertion((EPOCHS + errors).encode()) == DEVICE.format(n=0).strip()
    assert find_assertion(EPOCHS.encode()) == ""


@pytest.mark.parametrize("output", ["", EPOCHS, "loss: 3\nwhat(): is no word by itself\n", GLOO + EPOCHS])
def test_what_is_no_crash_or_lies_long_before_the_end_tells_of_none(output: str) -> None:
    assert read_crash(output.encode()) is None


def test_long_lines_are_cut_and_any_bytes_borne() -> None:
    crash = read_crash(b"terminate called \xff" + b"x" * 100_000 + b"\n" + ABORTED.encode())

    assert crash is not None
    assert len(crash.words[0]) <= 400


def test_a_mismatch_is_no_echo_although_gloo_finds_it_and_a_lost_peer_is_one() -> None:
    assert not is_collateral(GLOO)
    assert is_collateral(LOST)
    assert not is_collateral("DistBackendError: NCCL watchdog: CUDA error: device-side assert triggered")
