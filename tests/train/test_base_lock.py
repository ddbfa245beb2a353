"""Two `train` with one base folder: the second one leaves the files of the first one alone."""

import signal
import subprocess

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import live

WAITS = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def test_a_second_train_is_refused_and_names_the_first_one(base: Base) -> None:
    base.program(WAITS)

    with live(base) as first:
        first.until(b"ready\n")
        second = base.train()
        files = {path.name for path in base.output.iterdir()}
        (base.code / "go").touch()
        done = first.end()

    assert second.status == 75
    assert f"{base.root}: another train (pid {first.process.pid}) is running a job with this base folder" in second.log
    assert not {"failure", "success", "outcome.json"} & files
    assert (done.status, done.succeeded) == (0, True)


def test_a_train_that_was_killed_holds_no_base(base: Base) -> None:
    base.program(WAITS)
    with live(base) as first:
        first.until(b"ready\n")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        base.program("print('done')\n")

        done = base.train()

    assert done.status == 0, done.log


@pytest.mark.root
def test_a_base_that_is_read_only_is_one(base: Base) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs to be allowed to mount")
    base.program("print('done')\n")
    script = f'mount --bind -o ro {base.root} {base.root} && exec "$@"'

    done = base.train(command=["unshare", "--mount", "sh", "-c", script, "sh", *TRAIN])

    assert done.status == 0, done.log
