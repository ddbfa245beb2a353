"""The end of a job where saying it is hard: no place to write, no console, Ctrl-C, pipes held open (checklist 8)."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.base import ROOT, TRAIN, Base
from tests.train.live import alive, live

FAILS = "raise RuntimeError('no such shard')\n"


def under_mount(base: Base, options: str) -> list[str]:
    """Return the command that runs `train` with a tmpfs of *options* as its output folder; skips where it may not."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs to be allowed to mount")
    base.output.mkdir()
    script = f'mount -t tmpfs -o {options} none {base.output} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *TRAIN]


@pytest.mark.root
def test_a_failure_text_that_cannot_be_written_is_in_the_log(base: Base) -> None:
    base.program(FAILS)

    done = base.train(command=under_mount(base, "ro"))

    assert done.status == 1
    assert 'ErrorMessage "RuntimeError: no such shard' in done.log
    assert f"{base.output}/failure: cannot be written (Read-only file system)" in done.log


@pytest.mark.root
def test_a_script_that_fills_the_disk_is_a_failure_that_says_so(base: Base) -> None:
    base.program("import os\nopen(os.environ['SM_OUTPUT_DATA_DIR'] + '/big', 'wb').write(bytes(1 << 20))\n")

    done = base.train(command=under_mount(base, "size=64k"))

    assert done.status == 1
    assert 'ErrorMessage "OSError: [Errno 28] No space left on device' in done.log
    assert f"{base.output}/failure: cannot be written (No space left on device)" in done.log


def test_a_failure_is_told_though_the_script_removed_the_output_folder(base: Base) -> None:
    base.program(f"import os, shutil\nshutil.rmtree(os.environ['SM_OUTPUT_DIR'])\n{FAILS}")

    done = base.train()

    assert done.status == 1
    assert done.failure is not None
    assert "no such shard" in done.failure


@pytest.mark.parametrize("how", ["own-session", "ignore"])
def test_a_failure_is_reported_at_once_though_a_grandchild_holds_the_pipes(base: Base, how: str) -> None:
    base.program(
        "import signal, subprocess, sys, time\n"
        "def deaf(): signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"held = subprocess.Popen(['sleep', '600'], preexec_fn=deaf if {how!r} == 'ignore' else None,\n"
        f"    start_new_session={how!r} == 'own-session')\n"
        "print(f'pid={held.pid}', flush=True)\n"
        "raise SystemExit(3)\n"
    )

    done = base.train(deadline_s=60)
    ended_s = max(end["ended_ns"] for end in done.outcome["exits"]) / 1e9

    assert done.status == 3
    assert time.time() - ended_s < 20  # The grace after a failure is 30 s.
    assert not alive(int(done.stdout.split(b"=")[1]))


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3)], ids=["success", "failure"])
def test_a_signal_after_the_report_changes_nothing(base: Base, end: str, status: int) -> None:
    # An orchestrator stops the other containers when the first one ends: `train` may be on its way out already.
    base.program(f"import sys\n{end}\n")

    with live(base) as running:
        running.until(b"Reporting training")
        while running.process.poll() is None:
            running.signal(signal.SIGTERM)
        done = running.end()

    assert done.status == status
    assert done.outcome["exit_code"] == status


@pytest.mark.parametrize("way", ["program", "plugin"])
def test_ctrl_c_is_never_a_success_unless_the_script_says_so(base: Base, way: str) -> None:
    wait = "import time\n    print('ready', flush=True)\n    time.sleep(600)"
    base.program(f"def main():\n    {wait}\nif __name__ == '__main__': main()\n", "waits.py")
    base.hyperparameters(program="waits.py")
    more = {"SAGEMAKER_TRAINING_MODULE": "waits:main"} if way == "plugin" else {}

    with live(base, **more) as running:
        running.until(b"ready\n")
        running.signal(signal.SIGINT)
        done = running.end()

    assert done.status == 130
    assert not done.succeeded
    assert done.failure is not None
    assert "stopped by SIGINT" in done.failure


def test_an_error_that_the_originals_plug_in_swallowed_is_a_failure(base: Base) -> None:
    base.program("raise RuntimeError('[enforce fail at pair.cc:446] gloo::EnforceNotMet: Connection closed')\n")

    done = base.train(SAGEMAKER_TRAINING_MODULE="sagemaker_pytorch_container.training:main")

    assert done.status == 1
    assert not done.succeeded


@pytest.mark.parametrize(
    "redirections",
    [">&- 2>&- <&-", ">&-", "2>&-", ">/dev/full 2>/dev/full"],
    ids=["all closed", "stdout closed", "stderr closed", "full"],
)
@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3)], ids=["success", "failure"])
def test_a_console_that_is_not_there_changes_no_status(base: Base, redirections: str, end: str, status: int) -> None:
    # Once, closed descriptors were taken by the signals' own pipe: our log lines came back as SIGUSR1.
    base.program(f"import sys\nprint('out')\nprint('err', file=sys.stderr)\n{end}\n")

    done = base.train(command=["sh", "-c", f'exec "$@" {redirections}', "sh", *TRAIN])

    assert done.status == status
    assert done.succeeded == (status == 0)
    assert done.outcome["exit_code"] == status


def test_a_fault_of_the_toolkit_is_70_and_says_where(base: Base) -> None:
    base.program("")
    broken = (
        "import sys; from toolkit.train.launchers import script\n"
        "def plan(*_): raise ZeroDivisionError('a fault')\n"
        "script.plan = plan\n"
        "from toolkit.cli.main import train; train()"
    )

    done = base.train(command=[sys.executable, "-c", broken], PYTHONPATH=str(ROOT))

    assert done.status == 70
    assert done.failure is not None
    assert done.failure.startswith('Framework Error:\nExitCode 70\nErrorMessage "ZeroDivisionError: a fault"')
    assert "Traceback" in done.failure


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS"])
def test_a_plugins_crash_is_its_own_not_trains(base: Base, name: str) -> None:
    base.program(f"import os, signal\ndef main(): os.kill(os.getpid(), signal.{name})\n", "plugged.py")
    base.hyperparameters(program=None)

    done = base.train(SAGEMAKER_TRAINING_MODULE="plugged:main")

    assert done.status == 128 + signal.Signals[name]
    assert done.failure is not None
    assert name in done.failure


SECRETS = {
    "api_key": json.dumps("sk-0123456789"),
    "digits_token": "9876543210",
    "password": json.dumps('it\'s "quoted" here'),
    # Short ones are masked beside their names only.
    "SECRET": "hq7",
    "pw": "vw zk",
    "tracker": json.dumps({"name": "runs", "api_key": "nested-0123"}),
    "private_key": json.dumps("-----BEGIN KEY-----\nMIIEpAIBAAKC\n-----END KEY-----\n"),
}


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "raise ValueError(sys.argv)", "print(sys.argv[-1], file=sys.stderr); sys.exit(3)"]
)
def test_no_secret_is_in_a_line_or_file_of_ours(base: Base, end: str) -> None:
    base.hyperparameters(SECRETS)
    base.program(
        f"import json, os, sys\nopen('got', 'w').write(json.dumps(sys.argv[1:] + [os.environ['MY_TOKEN']]))\n{end}\n"
    )

    done = base.train(MY_TOKEN="tok-abcdef")

    got = json.loads(Path(base.code, "got").read_text())
    toolkit_lines = "".join(line for line in done.stderr.decode().splitlines(True) if line.startswith("[toolkit]"))
    written = "".join(path.read_text() for path in base.output.rglob("*") if path.is_file())
    assert done.status in (1, 3)
    assert 'it\'s "quoted" here' in got
    for word in ("sk-0123456789", "9876543210", "quoted", "nested-0123", "MIIEpAIBAAKC", "tok-abcdef", "hq7", "vw zk"):
        assert word in json.dumps(got)
        assert word not in toolkit_lines
        assert word not in written
