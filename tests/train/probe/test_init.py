"""The probe tells from /proc whether PID 1 of a container passes a stop on."""

import os
from pathlib import Path

import pytest

from tests.train.probe.test_look import lay
from toolkit.train.probe.init import OF_THE_MACHINE, deaf_init

TERM, NONE = "0000000000004000", "0000000000000000"
PYTHON = "/usr/bin/python3\0start.py\0"


def proc(
    root: Path,
    cmdline: str,
    *,
    caught: str = NONE,
    ignored: str = NONE,
    blocked: str = NONE,
    waits_in: str = "do_wait",
    namespace: str = "pid:[4026532000]",
    parent: str = "sh\0-c\0",
    parents_parent: int = 1,
) -> Path:
    """Lay out /proc, as far as it is read: PID 1, and this process's parent."""
    status = f"Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n"
    pid = os.getppid()
    lay(
        root,
        {
            f"proc/{pid}/cmdline": parent,
            f"proc/{pid}/status": f"Name:\tx\nPPid:\t{parents_parent}\n",
            "proc/1/cmdline": cmdline,
            "proc/1/status": status,
            "proc/1/wchan": waits_in,
        },
    )
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(namespace)
    return root


@pytest.mark.parametrize(
    ("cmdline", "caught", "ignored"),
    [
        ("/bin/bash\0-c\0sm_train.sh\0", "0000000000010000", NONE),  # SIGCHLD alone.
        ("bash\0/usr/local/bin/start_with_right_hostname.sh\0train\0", NONE, NONE),
        ("-sh\0", NONE, TERM),  # An interactive one ignores it.
        (PYTHON, "0000000000000002", "0000000001001000"),
        ("/opt/app/launcher\0", NONE, TERM),
    ],
)
def test_a_first_process_without_a_handler_is_told(tmp_path: Path, cmdline: str, caught: str, ignored: str) -> None:
    warning = deaf_init(proc(tmp_path, cmdline, caught=caught, ignored=ignored))

    is_shell = "sh\0" in cmdline
    kind = "a shell" if is_shell else "a program"
    assert f"{kind} ({cmdline.partition(chr(0))[0]}) that drops SIGTERM" in warning
    assert ("exec train" if is_shell else "docker run --init") in warning


@pytest.mark.parametrize(
    ("cmdline", "more"),
    [
        ("/bin/dash\0-c\0train; true\0", {"caught": "0000000000014000"}),  # It has a trap.
        (PYTHON, {"caught": "0000000000004002"}),
        (PYTHON, {"blocked": TERM}),  # It starts its child, or will wait for the signal.
        (PYTHON, {"waits_in": "do_sigtimedwait.isra.0"}),  # signal.sigwait
        (PYTHON, {"waits_in": "0"}),  # It runs, or the kernel hides it.
        (PYTHON, {"namespace": OF_THE_MACHINE}),
        (PYTHON, {"parent": "jupyter\0", "parents_parent": 1}),
        (PYTHON, {"parent": "bash\0", "parents_parent": 0}),  # docker exec
        # As Debian 13's packages look in /proc while they wait.
        ("/usr/bin/tini\0--\0train\0", {"ignored": "0000000000300000", "waits_in": "do_sigtimedwait.isra.0"}),
        ("/sbin/docker-init\0--\0train\0", {"waits_in": "do_sigtimedwait"}),
        ("/usr/bin/dumb-init\0train\0", {"caught": "000000007ffbfeff", "waits_in": "do_sigtimedwait.isra.0"}),
        ("catatonit\0--\0train\0", {"blocked": "fffffffe3ffbfa07", "waits_in": "signalfd_read_iter"}),
        ("/pause\0", {"caught": "0000000000014002", "waits_in": "do_pause"}),
        ("init [2]\0", {"ignored": TERM, "waits_in": "do_select"}),
        ("/sbin/init\0", {"waits_in": "ep_poll"}),
        ("", {}),  # A thread of the kernel's.
    ],
)
def test_a_first_process_that_may_take_the_stop_is_not_told(tmp_path: Path, cmdline: str, more: dict[str, str]) -> None:
    assert deaf_init(proc(tmp_path, cmdline, **more)) == ""  # type: ignore[arg-type]


def test_where_there_is_no_proc_nothing_is_said(tmp_path: Path) -> None:
    assert deaf_init(tmp_path) == ""
