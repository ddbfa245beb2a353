"""The starter of ranks, as a process: what the ranks get, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STARTER = Path(__file__).parents[3] / "toolkit/rank/hook/rank_starter.py"


def starting(code: str, ranks: int, **environ: str) -> "subprocess.Popen[str]":
    variables = json.dumps([{"RANK": str(rank)} for rank in range(ranks)])
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(STARTER), sys.executable, "-I", "-S", "-c", code],
        env={"PATH": os.environ["PATH"], "TOOLKIT_LOCAL_RANKS": variables, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_each_rank_has_its_variables_and_all_have_one_free_port() -> None:
    code = "import os; e = os.environ; print(e['RANK'], e['JAX_COORDINATOR_ADDRESS'], 'TOOLKIT_LOCAL_RANKS' in e)"

    with starting(code, 3, JAX_COORDINATOR_ADDRESS="127.0.0.1:0") as starter:
        lines = sorted(starter.communicate(timeout=60)[0].split("\n")[:-1])

    assert starter.returncode == 0
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    address = {line.split()[1] for line in lines}
    assert len(address) == 1
    assert int(address.pop().removeprefix("127.0.0.1:")) > 0
    assert {line.split()[2] for line in lines} == {"False"}


def test_the_first_rank_that_fails_ends_the_others_and_gives_its_code() -> None:
    code = "import os, sys, time; time.sleep(0 if os.environ['RANK'] == '1' else 600); sys.exit(3)"

    with starting(code, 3) as starter:
        starter.communicate(timeout=60)

    assert starter.returncode == 3


def test_a_rank_that_is_killed_ends_the_starter_by_the_same_signal() -> None:
    with starting("import os; os.kill(os.getpid(), 9)", 1) as starter:
        starter.communicate(timeout=60)

    assert starter.returncode == -signal.SIGKILL


def test_a_signal_reaches_every_rank_which_may_end_well() -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0));print('here', flush=True); time.sleep(600)"
    )
    with starting(code, 2) as starter:
        assert starter.stdout is not None
        assert [starter.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        starter.send_signal(signal.SIGTERM)
        starter.communicate(timeout=60)

    assert starter.returncode == 0


def test_under_the_rank_shim_a_failure_leaves_the_others_to_train() -> None:
    """`train` decides then when they end; PYTHON_EXEC, the shim, gets the whole command."""
    code = "import os, sys; print(os.environ['RANK']); sys.exit(int(os.environ['RANK'] == '0') * 3)"

    with starting(code, 2, PYTHON_EXEC="/usr/bin/env") as starter:
        output = starter.communicate(timeout=60)[0]

    assert sorted(output.split()) == ["0", "1"]
    assert starter.returncode == 3


def test_a_command_that_is_not_there_is_named() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(STARTER), "/nothing/here"],
        env={"TOOLKIT_LOCAL_RANKS": "[{}]"},
        stderr=subprocess.PIPE,
        text=True,
    ) as starter:
        errors = starter.communicate(timeout=60)[1]

    assert errors == "/nothing/here: cannot be started (No such file or directory)\n"
    assert starter.returncode == 127
