"""An exception is the cause also where it was never printed."""

import sys
from pathlib import Path

import pytest

from tests.train.base import Base
from tests.train.live import live


def test_an_exception_whose_print_is_lost_is_still_the_cause(base: Base) -> None:
    base.program("import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\nraise RuntimeError('no shard 7')\n")

    done = base.train()

    assert done.status == 1
    assert b"no shard 7" not in done.stdout
    assert done.failure is not None
    assert 'ErrorMessage "RuntimeError: no shard 7 (at ' in done.failure


def test_an_exception_that_was_printed_is_told_once(base: Base) -> None:
    base.program("raise RuntimeError('no shard 7')\n")

    done = base.train()

    assert done.outcome["cause"]["traceback"].count("Traceback") == 1
    assert done.outcome["cause"]["traceback"].count("no shard 7") == 2  # Its line of the script, and itself.


@pytest.mark.parametrize("message", ["'x' * 1_000_000", "'no shard\\n' + 'line\\n' * 60_000"])
def test_however_long_the_message_is_its_type_and_place_are_told(base: Base, message: str) -> None:
    base.program(f"def load():\n    raise ValueError({message})\nload()\n")

    done = base.train()

    assert done.failure is not None
    assert 'ErrorMessage "ValueError' in done.failure[:1024]
    assert "opt/ml/code/train.py:2 in load)" in done.failure[:1024]


def test_a_traceback_that_the_script_survived_is_not_the_cause_of_its_own_exit(base: Base) -> None:
    base.program(
        "import sys, traceback\n"
        "try:\n    open('/nope')\nexcept OSError:\n    traceback.print_exc()\n"
        "print('no quota left')\n"
        "sys.exit(3)\n"
    )

    done = base.train()

    assert done.status == 3
    first, second = done.outcome["cause"]["message"].splitlines()
    assert first == "no quota left"
    assert second.startswith("before that it printed a traceback and went on: FileNotFoundError")


def test_a_reason_on_stdout_is_the_cause_where_stderr_holds_older_noise(base: Base) -> None:
    base.program(
        "import sys, time\n"
        "print('a library was here', file=sys.stderr)\n"
        "time.sleep(0.2)\n"
        "print('no shards in /data')\n"
        "sys.exit(2)\n"
    )

    done = base.train()

    assert done.outcome["cause"]["message"].splitlines()[0] == "no shards in /data"


def test_a_hook_of_the_scripts_own_hides_neither_type_nor_place(base: Base) -> None:
    base.program(
        "import sys\n"
        "sys.excepthook = lambda *_: print('╭─ Traceback ─╮\\n╰─ Oops ─╯', file=sys.stderr)\n"
        "def load():\n    raise ValueError('no shard 7')\n"
        "load()\n"
    )

    done = base.train()

    assert done.outcome["cause"]["message"].startswith("ValueError: no shard 7 (at ")
    assert done.outcome["cause"]["message"].endswith("opt/ml/code/train.py:4 in load)")


def test_a_save_that_raises_during_a_stop_is_told(base: Base) -> None:
    base.program(
        "import signal, time\n"
        "def save(*_):\n    raise OSError(28, 'No space left on device')\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )

    with live(base) as running:
        running.until(b"ready\n")
        running.signal()
        done = running.end()

    assert done.status == 143
    assert done.failure is not None
    assert "script ended with code 1: OSError: [Errno 28] No space left on device (at " in done.failure[:1024]
    assert "train.py:3 in save)" in done.failure[:1024]


@pytest.mark.torch
@pytest.mark.skipif(not any((Path(folder) / "torch").is_dir() for folder in sys.path), reason="torch is not installed")
def test_a_collective_of_different_sizes_is_told_in_gloos_words(base: Base) -> None:
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"})
    base.program(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(200 if dist.get_rank() == 0 else 100))\n"
        "dist.barrier()\n"
    )

    done = base.train()

    assert done.status == 134
    assert done.outcome["cause"]["rank"] == 1
    first, reason, frames = done.outcome["cause"]["message"].splitlines()
    assert first == (
        "rank 1 was killed by SIGABRT (signal 6); terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    )
    assert reason.startswith("  what():  [enforce fail at ")
    assert "200 vs 100" in reason
    assert frames.startswith("Python was in ")
    assert frames.endswith("opt/ml/code/train.py:3 in <module>")


# Starts a rank itself, as Lightning does without a launcher, and fails as gloo does where that rank is gone.
STARTS_A_RANK = """
import subprocess, sys
if sys.argv[1:] == ["rank"]:
    raise ValueError("a bad batch")
subprocess.run([sys.executable, __file__, "rank"], {how})
raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4366")
"""


@pytest.mark.parametrize("how", ["", "stderr=subprocess.DEVNULL", "cwd='/'"])
def test_what_a_rank_that_the_script_started_raised_is_the_cause(base: Base, how: str) -> None:
    base.program(STARTS_A_RANK.format(how=how))

    done = base.train()

    assert done.failure is not None
    assert 'ErrorMessage "ValueError: a bad batch (at ' in done.failure


def test_what_a_process_raised_is_no_cause_but_is_said_where_its_script_went_on(base: Base) -> None:
    base.program(STARTS_A_RANK.format(how="").replace("raise RuntimeError", "raise KeyError('epochs')  #"))

    done = base.train()

    assert done.failure is not None
    cause, _, message = done.failure.partition("Traceback")[0].partition(
        "\nbefore that a process that it had started ended by "
    )
    assert "KeyError: 'epochs'" in cause
    assert "a bad batch" not in cause
    assert message.startswith("ValueError: a bad batch (at ")


def test_a_script_that_only_starts_the_real_one_fails_for_the_real_ones_exception(base: Base) -> None:
    base.program("import subprocess, sys\n\nsubprocess.run([sys.executable, 'real.py'], check=True)\n")
    base.program("import json\ndef load():\n    return json.loads('{')\nload()\n", "real.py")

    done = base.train()

    assert done.failure is not None
    assert 'ErrorMessage "json.decoder.JSONDecodeError: ' in done.failure[:1024]
    assert "/opt/ml/code/real.py:3 in load, raised in json/decoder.py:" in done.failure[:1024]
    assert "(CalledProcessError in train.py:3)" in done.failure[:1024]


def test_a_module_of_the_jobs_own_code_is_not_to_be_installed(base: Base) -> None:
    base.program("import models\n")
    base.program("", "src/models/__init__.py")

    done = base.train()

    assert done.failure is not None
    assert "opt/ml/code/src on Python's path" in done.failure
    assert "requirements.txt" not in done.failure


def test_a_subclass_of_keyboardinterrupt_is_the_cause_and_was_not_survived(base: Base) -> None:
    base.program("class Stop(KeyboardInterrupt): pass\nraise Stop('no quota')\n")

    done = base.train()

    assert done.status == 1
    assert done.outcome["cause"]["message"].startswith("Stop: no quota (at ")
    assert "went on" not in done.outcome["cause"]["message"]


def test_a_shell_script_that_fails_for_windows_line_ends_is_told_how_to_mend_them(base: Base) -> None:
    base.hyperparameters(program="run.sh")
    base.program("#!/bin/sh\necho starts\r\nno-such-program\r\n", "run.sh")

    done = base.train()

    assert done.status == 127
    assert b"warning: Line 2 of run.sh ends as on Windows" in done.stderr
    assert done.failure is not None
    assert "no-such-program\\r: not found" in done.failure
    assert "sed -i 's/\\r$//' run.sh" in done.failure


@pytest.mark.parametrize(
    "ends",
    [
        "print('x ' * 292 + secret, file=sys.stderr, flush=True); os._exit(3)",
        "raise ValueError('x ' * 4088 + secret)",
        "print('*** ' + 'x ' * 190 + secret + ' ***: terminated', file=sys.stderr, flush=True); os.abort()",
        "raise ValueError('lost') from KeyError('x ' * 80 + secret)",
    ],
    ids=["last words", "message", "crash", "chain"],
)
def test_no_part_of_a_secret_is_where_a_text_is_cut(base: Base, ends: str) -> None:
    base.program(f"import os, sys\nsecret = 'postgresql://me:' + os.environ['MY_PASSWORD'] + '@db/train'\n{ends}\n")

    done = base.train(MY_PASSWORD="Zq7RtYx9LmN4pWvKc2", MALLOC_CHECK_="0")

    written = f"{done.failure}{done.outcome}" + "".join(
        line for line in done.log.splitlines() if line.startswith("[toolkit]")
    )
    assert "x x x x..." in written or "x x x x\n" in written
    assert "Zq7Rt" not in written
