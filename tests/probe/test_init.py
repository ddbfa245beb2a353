"""What PID 1 of a container does to a stop, from its entries in /proc."""

from pathlib import Path

import pytest

from tests.probe.test_look import lay
from toolkit.probe.init import deaf_shell

TERM, NONE = "0000000000004000", "0000000000000000"


@pytest.mark.parametrize(
    ("cmdline", "caught", "ignored", "is_deaf"),
    [
        ("/bin/bash\0-c\0sm_train.sh\0", "0000000000010000", NONE, True),  # SIGCHLD alone.
        ("bash\0/usr/local/bin/start_with_right_hostname.sh\0train\0", NONE, NONE, True),
        ("-sh\0", NONE, TERM, True),  # An interactive one ignores it.
        ("/bin/dash\0-c\0train; true\0", "0000000000014000", NONE, False),  # It has a trap.
        ("/sbin/init\0", NONE, NONE, False),
        ("/usr/bin/tini\0--\0train\0", NONE, NONE, False),
        ("/usr/bin/python3\0start.py\0", NONE, NONE, False),
        ("", NONE, NONE, False),  # A thread of the kernel's.
    ],
)
def test_a_shell_without_a_handler_is_told(
    tmp_path: Path, cmdline: str, caught: str, ignored: str, is_deaf: bool
) -> None:
    status = f"Name:\tx\nSigBlk:\t{NONE}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n"

    said = deaf_shell(lay(tmp_path, {"proc/1/cmdline": cmdline, "proc/1/status": status}))

    assert bool(said) is is_deaf
    if is_deaf:
        assert f"a shell ({cmdline.partition(chr(0))[0]}) that drops SIGTERM" in said
        assert "exec train" in said


def test_where_there_is_no_proc_nothing_is_said(tmp_path: Path) -> None:
    assert deaf_shell(tmp_path) == ""
