"""The faults of scripts/sdk-faults: what a job's script does, and what its end should look like."""

from typing import Any

from toolkit.records import Record

RANK_1 = "import os\nlast = os.environ.get('RANK', '0') == str(int(os.environ.get('WORLD_SIZE', '1')) - 1)\n"
# The other rank waits in a collective for the one that fails.
TOGETHER = """
if "RANK" in os.environ:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
"""
WAITS = """
if "RANK" in os.environ:
    dist.all_reduce(torch.ones(1))
"""
STOPS = """
import signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if last:
    print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
with open(os.path.join(os.environ["SM_MODEL_DIR"], "heard-" + os.environ.get("RANK", "0")), "w") as file:
    file.write(str(time.time()))
"""


class Fault(Record, frozen=True, kw_only=True):
    """One fault."""

    what: str
    """The words of the table."""
    last: str
    """What the last rank does."""
    expected: str = ""
    """What a failure text has to hold; "": the job succeeds."""
    code: int = 1
    """The exit code that is the script's own."""
    files: dict[str, str] = {}
    """Files of the source beside train.py."""
    trainer: dict[str, Any] = {}
    """Options of ModelTrainer."""
    source: dict[str, Any] = {}
    """Options of the source code."""
    environ: dict[str, str] = {}
    """Variables of the container."""
    is_stopped: bool = False
    """PID 1 gets SIGTERM once the script is ready, and SIGKILL 15 s later."""
    many_ranks: bool = False
    """It is tried under torchrun, too."""


FAULTS: dict[str, Fault] = {
    "healthy": Fault(what="nothing: the job trains", last="pass", code=0, many_ranks=True),
    "raises": Fault(
        what="raises", last="raise ValueError('loss is nan')", expected="ValueError: loss is nan", many_ranks=True
    ),
    "raises-from": Fault(
        what="raises from another exception",
        last="try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('no batch') from error",
        expected="RuntimeError: no batch",
    ),
    "imports": Fault(
        what="imports a module that is not there",
        last="import no_such_module",
        expected="No module named 'no_such_module'",
    ),
    "syntax": Fault(
        what="imports a file with a syntax error",
        last="import broken",
        files={"broken.py": "def f(:\n"},
        expected="SyntaxError",
    ),
    "exits-3": Fault(what="ends with 3", last="raise SystemExit(3)", expected="3", code=3, many_ranks=True),
    "exits-text": Fault(
        what="ends with a text", last="raise SystemExit('no data in channel')", expected="no data in channel"
    ),
    "os-exit": Fault(what="ends by os._exit(7)", last="os._exit(7)", expected="7", code=7),
    "sigkill": Fault(
        what="is killed by SIGKILL",
        last="import signal; os.kill(os.getpid(), signal.SIGKILL)",
        expected="SIGKILL",
        code=137,
        many_ranks=True,
    ),
    "sigsegv": Fault(
        what="dies of SIGSEGV",
        last="import signal; os.kill(os.getpid(), signal.SIGSEGV)",
        expected="SIGSEGV",
        code=139,
    ),
    "sigabrt": Fault(what="dies of SIGABRT", last="os.abort()", expected="SIGABRT", code=134),
    "child": Fault(
        what="reports that a child failed",
        last="import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise KeyError(\"lr\")'], check=True)",
        expected="KeyError: 'lr'",
        many_ranks=True,
    ),
    "not-utf-8": Fault(
        what="prints a byte that is not UTF-8",
        last="os.write(1, b'caf\\xe9\\n' * 3); print('trained')",
        code=0,
        many_ranks=True,
    ),
    "long-line": Fault(what="prints a line of 8 MB", last="print('x' * (8 << 20))", code=0),
    "pipe-held": Fault(
        what="leaves a child that holds its output",
        last="import subprocess; subprocess.Popen(['sleep', '20'])",
        code=0,
    ),
    "own-failure": Fault(
        what="writes output/failure itself, and ends with 5",
        last="open('/opt/ml/output/failure', 'w').write('disk of the user is full'); raise SystemExit(5)",
        expected="disk of the user is full",
        code=5,
    ),
    "no-requirement": Fault(
        what="has a requirement that pip cannot find",
        last="pass",
        files={"requirements.txt": "no-such-package-of-ours==1\n"},
        source={"requirements": "requirements.txt"},
        expected="no-such-package-of-ours",
    ),
    "stopped": Fault(what="is stopped, and saves", last=STOPS, code=0, is_stopped=True, many_ranks=True),
    "deaf": Fault(
        what="is stopped, and ignores it",
        last="import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
        "time.sleep(99)",
        expected="SIGTERM",
        code=143,
        environ={"TOOLKIT_GRACE_S": "4"},
        is_stopped=True,
    ),
}


def script(fault: Fault) -> str:
    """Return train.py of *fault*."""
    acts = "\n".join("    " + line for line in fault.last.splitlines())
    if fault.is_stopped:
        return RANK_1 + TOGETHER + fault.last + "\n"
    return RANK_1 + TOGETHER + f"if last:\n{acts}\n" + WAITS
