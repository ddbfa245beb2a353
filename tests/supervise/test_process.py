"""How a process ended: by itself, or because we told it to."""

import signal

import pytest

from toolkit.supervise.process import Process

CODE_1, BY_TERM, BY_SEGV = 1 << 8, int(signal.SIGTERM), int(signal.SIGSEGV)


@pytest.mark.parametrize(
    ("why", "status", "raised_ns", "told_ns", "code", "number", "told"),
    [
        ("it ended by itself", CODE_1, None, None, 1, None, False),
        ("it was told and died of it", BY_TERM, None, 50, None, 15, True),
        ("it was told, and an exception came of it", CODE_1, 60, 50, 1, None, True),
        ("it was told while its exception took it down", CODE_1, 40, 50, 1, None, False),
        ("it was told while its exception took it down, and died of that", BY_TERM, 40, 50, 1, None, False),
        ("it crashed after its exception, told by nobody", BY_SEGV, 40, None, None, 11, False),
    ],
)
def test_what_counts_is_what_came_first(
    why: str, status: int, raised_ns: int | None, told_ns: int | None, code: int | None, number: int | None, told: bool
) -> None:
    process = Process("rank 0", is_main=False, rank=0, local_rank=0)
    process.told_ns = told_ns

    ended = process.exit(status, 100, raised_ns)

    assert (ended.code, ended.signal, ended.told) == (code, number, told), why
