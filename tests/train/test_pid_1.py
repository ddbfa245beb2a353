"""A stop that the platform sends to PID 1 alone, where PID 1 is a shell at first: SDK v3's sm_train.sh."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import Live, live

pytestmark = [pytest.mark.root]
# The form of what the SDK sends: own words, the same steps (a blank first line, traps, cd, eval of a command).
SM_TRAIN = """
#!/bin/bash
set -e
handle_error() {{ code=$?; echo "ended with $code" >>"$SAGEMAKER_BASE_DIR/output/failure"; exit $code; }}
trap 'handle_error' ERR
export SM_OUTPUT_FAILURE="$SAGEMAKER_BASE_DIR/output/failure" SM_MASTER_PORT=7777
cd "$SAGEMAKER_BASE_DIR/input/data/code"
command=$(cat <<'END'
{command}
END
)
eval "$command"
echo completed
"""
SAVES = """
import signal, sys, os
print("up", flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
print("saved", flush=True)
"""


@pytest.fixture
def namespace() -> list[str]:
    """The command that makes another PID 1 of a PID namespace; skips where that is not allowed."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs to be allowed to make a PID namespace")
    return command


def sent(base: Base, command: str) -> list[str]:
    """Lay out what ModelTrainer sends, with *command*; return the command by which SageMaker starts the job."""
    drivers, code = base.root / "input/data/sm_drivers", base.root / "input/data/code"
    drivers.mkdir(parents=True)
    code.mkdir()
    base.hyperparameters(program=None)
    base.output.mkdir(exist_ok=True)
    (drivers / "sourcecode.json").write_text('{"entry_script": "train.py", "source_dir": "src", "command": "exec x"}')
    (drivers / "distributed.json").write_text("{}")
    (drivers / "sm_train.sh").write_text(SM_TRAIN.format(command=command))
    (code / "train.py").write_text(SAVES)
    script = drivers / "sm_train.sh"
    return ["/bin/bash", "-c", f"chmod +x {script} && {script}"]


def first_process(job: Live) -> int:
    """Return the pid of the namespace's PID 1, the child of unshare."""
    return int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0])


def test_a_job_that_sm_train_starts_with_exec_saves_when_it_is_stopped(base: Base, namespace: list[str]) -> None:
    command = sent(base, f"cd . && exec {' '.join(TRAIN)}")

    with live(base, command=[*namespace, *command]) as job:
        job.until(b"ready")
        os.kill(first_process(job), signal.SIGTERM)
        done = job.end()

    assert b"saved" in done.stdout
    assert "PID 1 of this container" not in done.log
    assert base.output.joinpath("outcome.json").exists()
    assert done.outcome["status"] == "stopped"


def test_where_sm_train_stays_pid_1_train_says_that_no_stop_will_come(base: Base, namespace: list[str]) -> None:
    command = sent(base, " ".join(TRAIN))

    with live(base, command=[*namespace, *command]) as job:
        job.until(b"ready")
        os.kill(first_process(job), signal.SIGTERM)  # The kernel drops it.
        script = next(
            pid
            for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
            if b"train.py" in _cmdline(pid) and str(base.root).encode() in _cwd(pid)
        )
        os.kill(script, signal.SIGTERM)
        done = job.end()

    assert done.log.count("PID 1 of this container is a shell (/bin/bash) that drops SIGTERM") == 1
    assert 'SourceCode(command="exec train")' in done.log
    assert done.stdout.rstrip().endswith(b"completed")


STARTS = """
import signal, subprocess, sys
if {handles}:
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
child = subprocess.Popen(sys.argv[1:])
sys.exit(child.wait())
"""


@pytest.mark.parametrize("handles", [False, True])
def test_a_python_program_as_pid_1_is_told_that_it_drops_a_stop_unless_it_handles_it(
    base: Base, namespace: list[str], handles: bool
) -> None:
    base.hyperparameters()
    base.program("print('trained')")

    with live(base, command=[*namespace, sys.executable, "-c", STARTS.format(handles=handles), *TRAIN]) as job:
        done = job.end()

    message = f"PID 1 of this container is a program ({sys.executable}) that drops SIGTERM"
    assert done.stdout.rstrip().endswith(b"trained")
    assert done.log.count(message) == (not handles)
    assert done.log.count("PID 1 of this container") == (not handles)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _cwd(pid: int) -> bytes:
    try:
        return bytes(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return b""
