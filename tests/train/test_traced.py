"""A script that asks to be traced (PTRACE_TRACEME) stops at every signal until its tracer, `train`, lets it go on."""

import pytest

from tests.train.base import Base

TRACED = "import ctypes, os, signal, sys, time\nctypes.CDLL(None).ptrace(0, 0, None, None)\n"


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (
            "signal.signal(signal.SIGUSR1, lambda *_: print('heard'))\nos.kill(os.getpid(), signal.SIGUSR1)\n",
            b"heard\n",
        ),
        ("os.execv('/bin/sh', ['sh', '-c', 'echo executed; exit 3'])\n", b"executed\n"),
    ],
    ids=["signal", "exec"],
)
def test_a_traced_script_goes_on_and_its_own_code_is_the_end(base: Base, then: str, message: bytes) -> None:
    base.program(TRACED + then + "sys.exit(3)\n")

    done = base.train(deadline_s=60)

    assert done.stdout == message, done
    assert done.status == 3


def test_a_traced_script_that_is_killed_ends_by_that_signal(base: Base) -> None:
    base.program(TRACED + "os.kill(os.getpid(), signal.SIGKILL)\n")

    done = base.train(deadline_s=60)

    assert done.status == 137
