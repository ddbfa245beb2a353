"""A process ended by itself, or because we signalled it to."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from toolkit.train.supervise import stacks
from toolkit.train.supervise.process import PhaseProcess, command_name

CODE_1, BY_TERM, BY_SEGV = 1 << 8, int(signal.SIGTERM), int(signal.SIGSEGV)


@pytest.mark.parametrize(
    ("reason", "status", "raised_ns", "signalled_ns", "code", "number", "signalled"),
    [
        ("it ended by itself", CODE_1, None, None, 1, None, False),
        ("it was signalled and died of it", BY_TERM, None, 50, None, 15, True),
        ("it was signalled, and an exception came of it", CODE_1, 60, 50, 1, None, True),
        ("it was signalled while its exception took it down", CODE_1, 40, 50, 1, None, False),
        ("it was signalled while its exception took it down, and died of that", BY_TERM, 40, 50, 1, None, False),
        ("it crashed after its exception, signalled by nobody", BY_SEGV, 40, None, None, 11, False),
    ],
)
def test_what_counts_is_what_came_first(
    reason: str,
    status: int,
    raised_ns: int | None,
    signalled_ns: int | None,
    code: int | None,
    number: int | None,
    signalled: bool,
) -> None:
    process = PhaseProcess("rank 0", is_main=False, rank=0, local_rank=0)
    process.signalled_ns = signalled_ns

    process_exit = process.exit(status, 100, raised_ns)

    assert (process_exit.code, process_exit.signal, process_exit.signalled) == (code, number, signalled), reason


def test_a_rank_that_was_leaving_with_a_code_when_it_was_told_ends_with_that_code() -> None:
    process = PhaseProcess("rank 0", is_main=False, rank=0, local_rank=0)
    process.signalled_ns = 50

    by_us, by_itself = process.exit(BY_TERM, 100, 40, 3), process.exit(3 << 8, 100, 40, 3)

    assert (by_us.code, by_us.signal, by_us.signalled) == (3, None, False)
    assert (by_itself.code, by_itself.signal, by_itself.signalled) == (3, None, False)


@pytest.mark.parametrize(
    ("status", "signalled_ns", "code", "signalled", "failed_ns"),
    [
        pytest.param(0, None, 0, False, 40, id="it ends well"),
        pytest.param(BY_TERM, 50, 0, False, 40, id="our signal cut its way out short"),
        pytest.param(0, 30, 0, True, 40, id="it was signalled before"),
        pytest.param(14 << 8, None, 14, False, 100, id="it failed on its way out"),
        pytest.param(14 << 8, 50, 14, True, 100, id="it failed on its way out because it was signalled"),
    ],
)
def test_a_rank_that_had_begun_to_end_with_0_has_ended_then(
    status: int, signalled_ns: int | None, code: int, signalled: bool, failed_ns: int
) -> None:
    process = PhaseProcess("rank 0", is_main=False, rank=0, local_rank=0)
    process.signalled_ns = signalled_ns

    process_exit = process.exit(status, 100, 40, 0)

    assert (process_exit.code, process_exit.signalled, process_exit.failed_ns) == (code, signalled, failed_ns)


@pytest.mark.parametrize("by_train", [True, False])
def test_a_sigkill_counts_as_told_only_where_it_was_ours(by_train: bool) -> None:
    process = PhaseProcess("rank 0", is_main=False, rank=0, local_rank=0)
    process.signalled_ns = 50
    process.killed = by_train

    process_exit = process.exit(int(signal.SIGKILL), 100, None)

    assert (process_exit.signal, process_exit.signalled) == (9, by_train)


def test_a_signal_to_one_that_is_ending_already_does_not_count() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = PhaseProcess("rank 0", is_main=False, rank=0, local_rank=0)
    process.note_start(pid)

    process.note_signal()

    _, status = os.waitpid(pid, 0)
    assert (process.exit(status, 100, None).code, process.exit(status, 100, None).signalled) == (7, False)


@pytest.fixture
def cut_name() -> Iterator[int]:
    """The pid of a process whose name the kernel has cut in the middle of a character."""
    program = "open('/proc/self/comm', 'wb').write('é'.encode() * 8); print(flush=True); import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_name_that_was_cut_in_the_middle_of_a_character_is_shown_as_far_as_it_is_one(cut_name: int) -> None:
    assert command_name(cut_name) == "é" * 7 + "\ufffd"


def test_the_stacks_of_a_process_with_such_a_name_are_asked_for_only_where_it_expects_that(cut_name: int) -> None:
    assert not stacks._expects(cut_name)


def test_the_name_of_a_process_that_is_gone_is_its_pid() -> None:
    assert command_name(2**22 + 1) == str(2**22 + 1)
