"""The same fault under torchrun and under `toolkit torchrun`: prints the table of docs/torchrun.md.

python -m tests.torchrun_lines.faults [WORDS]: the faults whose name holds WORDS; default: all ten, some minutes.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.ports import free_port

BIN = Path(sys.executable).parent
OTHERS = {
    "torchrun": (sys.executable, "-m", "torch.distributed.run"),
    "toolkit torchrun": (sys.executable, str(BIN / "toolkit"), "torchrun"),
}
WITHIN_S = 60.0  # What has not ended then is killed, and the table says so.
START = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
def ready():
    open(f"ready-{rank}", "w").close()
    while len([name for name in os.listdir() if name.startswith("ready-")]) < 2: time.sleep(0.01)
ready()
"""
ONE_OF_TWO = START + "if rank == 1: FAULT\ntime.sleep(30)\n"
LOSES_PEER = (
    START
    + """\
if rank == 1:
    import atexit
    atexit.register(time.sleep, 0.6)
    open("failing", "w").close()
    raise ValueError("loss is nan at step 3")
while not os.path.exists("failing"): time.sleep(0.01)
time.sleep(0.2)
raise ConnectionError("Connection closed by peer")
"""
)
SAVES = (
    START
    + """\
loader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def save(*_):
    time.sleep(1)
    loader.stdin.write(b"batch\\n"); loader.stdin.flush()
    if loader.stdout.readline() != b"batch\\n": raise RuntimeError("the data loader is gone")
    open(f"saved-{rank}", "w").close()
    loader.kill(); loader.wait(); sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"saves-{rank}", "w").close()
while True: time.sleep(0.1)
"""
)


class Fault(NamedTuple):
    name: str
    script: str
    hosts: int = 1
    act: Callable[[Path, list[subprocess.Popen[str]]], None] | None = None
    settings: tuple[tuple[str, str], ...] = ()


def _one(fault: str) -> str:
    return ONE_OF_TWO.replace("FAULT", fault)


def _stop(folder: Path, hosts: list[subprocess.Popen[str]]) -> None:
    _wait_for(folder, "saves-0", "saves-1")
    hosts[0].send_signal(signal.SIGTERM)


def _wait_for(folder: Path, *names: str) -> None:
    ends_s = time.monotonic() + WITHIN_S
    while not all((folder / name).exists() for name in names) and time.monotonic() < ends_s:
        time.sleep(0.02)


FAULTS = (
    Fault("rank 1 raises", _one('raise ValueError("loss is nan at step 3")')),
    Fault("rank 1 exits with 3", _one("sys.exit(3)")),
    Fault("rank 1 is killed (SIGKILL)", _one("os.kill(os.getpid(), signal.SIGKILL)")),
    Fault("rank 1 crashes (SIGSEGV)", _one("os.kill(os.getpid(), signal.SIGSEGV)")),
    Fault("rank 1 aborts (SIGABRT)", _one("os.abort()")),
    Fault("a module is missing, in all ranks", START + "import no_such_module\n"),
    Fault("rank 1 raises and ends slowly; rank 0 loses its peer", LOSES_PEER),
    Fault("a rank of the second host raises; the first host is healthy", _one('raise ValueError("loss is nan")'), 2),
    Fault("SIGTERM; ranks save with their data loader in 1 s", SAVES, 1, _stop),
    Fault("rank 1 hangs, and so rank 0", START + "signal.pause()\n", settings=(("TOOLKIT_STALL_S", "5"),)),
)


def run(fault: Fault, command: tuple[str, ...]) -> str:
    """Return how the job with *fault* ended under *command*, as a cell of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(fault.script)
        options = ["--nproc-per-node=2"]
        if fault.hosts == 2:
            place = f"--rdzv-endpoint=localhost:{free_port()}"
            options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=faults", "--rdzv-backend=c10d", place]
        environ = {"PATH": f"{BIN}:/usr/bin:/bin", "TMPDIR": name, "CUDA_VISIBLE_DEVICES": "", **dict(fault.settings)}
        hosts = [
            subprocess.Popen(
                [*command, *options, "train.py"],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=(folder / f"log-{number}").open("w"),
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for number in range(fault.hosts)
        ]
        _wait_for(folder, "ready-0", "ready-1")
        started_s = time.monotonic()
        if fault.act is not None:
            fault.act(folder, hosts)
        codes = [_code(host, started_s) for host in hosts]
        took_s = time.monotonic() - started_s
        logs = [(folder / f"log-{number}").read_text() for number in range(fault.hosts)]
        saved = sorted(path.name for path in folder.glob("saved-*"))
    said = dict.fromkeys(map(_cause, logs))
    parts = [f"{', '.join(codes)} after {took_s:.0f} s", *(text for text in said if text)]
    parts += [f"saved: {len(saved)} of 2 ranks"] if "saves-" in fault.script else []
    return "; ".join(parts)


def _code(host: subprocess.Popen[str], started_s: float) -> str:
    try:
        return str(host.wait(max(WITHIN_S - (time.monotonic() - started_s), 0.1)))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        return "not ended"


def _cause(log: str) -> str:
    """Return the cause that a launcher's log names."""
    if "[toolkit] ExitCode" in log:
        message = re.search(r'ErrorMessage "(.*?)(?: \(at .*)?"?$', log, re.M)
        place = re.search(r'ExtraInfo "(?:host [\w.-]+, )?(.*?), pid', log)
        return ": ".join(match[1] for match in (place, message) if match is not None)
    stopped = re.search(r"Training was stopped, exit code \d+: (.*)", log)
    if stopped is not None:
        return stopped[1][:80]
    root = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+).*?traceback : (.*?)\n", log, re.S)
    if root is not None:
        return f"root cause: rank {root[1]}, exitcode {root[2]}, no traceback"
    raised = re.findall(r"^(?:torch\S*\.)?(\w*Exception: .*|\w+Error: .*)", log, re.M)
    return raised[-1][:80] if raised else ""


def main() -> int:
    wanted = " ".join(sys.argv[1:])
    print("| fault | torchrun | toolkit torchrun |\n|---|---|---|", flush=True)
    for fault in FAULTS:
        if wanted in fault.name:
            cells = [run(fault, command) for command in OTHERS.values()]
            print(f"| {fault.name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
