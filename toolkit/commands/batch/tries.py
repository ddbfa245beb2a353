"""Runs the first steps of a job with a given batch, in processes of its own, and measures their memory.

A try is a `toolkit run` of the job. It is killed once every rank has ended enough steps, or at once when the processes
need more than the limit. So no try can take memory from others, and none ends this process.

Memory on the host is the sum over the try's processes of their proportional share (Pss), and beside it what each had
held at its own peak above what it holds now (VmHWM - Rss): never less than the true peak, since peaks of several
processes need not be at one time. Memory of GPUs is what nvidia-smi shows after the last step: the framework's own
cache keeps what its peak took.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import field

from toolkit.files import read as read_document
from toolkit.folders import as_absent, exists, matching, named_elsewhere
from toolkit.records import Record
from toolkit.status_pages.layout import STEPS_HEAD, STEPS_NAME, VARIABLE
from toolkit.train.supervise.kernel import descendants

LOOK_S = 0.05
# A pause is also this many times the look before it: reading the shares of a torch process's pages takes the kernel
# some 10 ms, and a look every 50 ms took a quarter of a core from the ranks.
PAUSE_TIMES = 6
# torch: "CUDA out of memory", "DefaultCPUAllocator: can't allocate memory"; TensorFlow: RESOURCE_EXHAUSTED; Python:
# MemoryError; the kernel: SIGKILL.
OUT_OF_MEMORY = ("memory", "OutOfMemory", "MemoryError", "RESOURCE_EXHAUSTED", "SIGKILL")


class BatchTrial(Record, frozen=True, kw_only=True):
    """A batch, and how its trial ended."""

    batch: int  # The size of the batch.
    fits: bool  # It fits into memory.
    reason: str = field(name="why", default="")  # Why it does not fit, "" if it does.
    is_fault: bool = False  # It failed for a reason that is not memory.
    memory_bytes: int = 0  # Its peak on the host.
    gpu_bytes: int | None = None  # Memory in use of the fullest GPU, None without one.
    steps: int = 0  # The steps that every rank ended.
    took_s: float = 0.0  # The time of the trial.

    @property
    def is_memory(self) -> bool:
        """True if the batch does not fit for want of memory."""
        return not self.fits and not self.is_fault and any(word in self.reason for word in OUT_OF_MEMORY)


def run_trial(
    words: Sequence[str],
    batch: int,
    folder: Path,
    *,
    environ: Mapping[str, str],
    limit_bytes: int,
    steps: int,
    patience_s: float,
) -> BatchTrial:
    """Run the job that the arguments *words* of `toolkit run` mean until each rank has ended *steps* steps.

    *folder*: the job's, which must not exist. *limit_bytes*: of the host's memory. *patience_s*: the longest wait
    for these steps.
    """
    began_s = time.monotonic()
    command = (sys.executable, "-m", "toolkit.cli.main", "run", *words, "--job-dir", str(folder), "--plain", "--quiet")
    process = subprocess.Popen(
        command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = done = 0

    def trial(fits: bool, reason: str = "", *, is_fault: bool = False, gpu: int | None = None) -> BatchTrial:
        return BatchTrial(
            batch=batch,
            fits=fits,
            reason=reason,
            is_fault=is_fault,
            memory_bytes=peak,
            gpu_bytes=gpu,
            steps=done,
            took_s=time.monotonic() - began_s,
        )

    try:
        while process.poll() is None:
            looks_s = time.monotonic()
            pids = descendants(process.pid)
            current, with_peaks = measure_memory(pids)
            peak = max(peak, with_peaks)
            if current > limit_bytes:
                return trial(False, "it needs more memory than the limit")
            done = max(done, _steps(pids))
            if done >= steps:
                fits = peak <= limit_bytes
                return trial(fits, "" if fits else "its peak memory is above the limit", gpu=_gpu_bytes())
            if time.monotonic() - began_s > patience_s:
                return trial(False, f"{done} of {steps} steps ended within {patience_s:g} s", is_fault=True)
            time.sleep(max(LOOK_S, PAUSE_TIMES * (time.monotonic() - looks_s)))
        return trial(*_ended(folder, done))
    finally:
        _end(process)


def _ended(folder: Path, done: int) -> tuple[bool, str]:
    """Return whether a job that ended before its time fits, and why not."""
    try:
        report: dict[str, Any] = json.loads(read_document(folder / "job.json"))
    except (OSError, ValueError):
        return False, "the job could not be started: run it with toolkit run to see why"
    if report.get("exit_code") == 0:
        return done > 0, "" if done else "the job ended without a step: there is no whole batch of this size"
    reason = " ".join(str(report.get("failure_reason") or f"exit code {report.get('exit_code')}").split())
    _, _, message = reason.partition("ErrorMessage ")
    return False, (message or reason)[:160]


def measure_memory(pids: set[int], proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the bytes that the processes hold now, and those with the peak of each.

    The share and what is resident are of one look. A process may free memory before the next file is read: what is
    resident there would count a freed array twice, as held and as above.
    """
    current = above = 0
    for pid in pids:
        shares = _fields(proc / f"{pid}/smaps_rollup", ("Pss", "Rss"))
        status = _fields(proc / f"{pid}/status", ("VmHWM", "VmRSS"))
        resident = shares.get("Rss", status.get("VmRSS", 0))
        current += shares.get("Pss", resident)
        above += max(0, status.get("VmHWM", 0) - resident)
    return current, current + above


def _fields(path: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Return the named lines of a file of /proc in bytes; none if the process has ended or is another user's."""
    sizes = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in names:
                    sizes[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return sizes


def _steps(pids: set[int]) -> int:
    """Return the steps that every rank among the processes has ended."""
    folders, ranks = set(), set()
    for pid in pids:
        try:
            environ = dict(
                pair.split(b"=", 1) for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in pair
            )
        except OSError:
            continue
        if VARIABLE.encode() in environ:
            folders.add(Path(os.fsdecode(environ[VARIABLE.encode()])))
            ranks.add(environ.get(b"RANK", environ.get(b"OMPI_COMM_WORLD_RANK", b"")))
    ranks.discard(b"")
    pattern = STEPS_NAME.replace("%d", "*")
    counts = [_written(path) for folder in folders for path in matching(folder, pattern, named_elsewhere)]
    counts = [count for count in counts if count]
    return min(counts) if counts and len(counts) >= len(ranks) else 0


def _written(path: Path) -> int:
    try:
        head = path.read_bytes()[: STEPS_HEAD.size]
    except OSError:
        return 0
    return int(STEPS_HEAD.unpack(head)[3]) if len(head) == STEPS_HEAD.size else 0


def _gpu_bytes() -> int | None:
    """Return the memory in use of the fullest GPU, None without one."""
    command = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return max(int(word) for word in output.split()) << 20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the try and wait until they are gone."""
    pids = descendants(process.pid)
    for pid in (process.pid, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    until_s = time.monotonic() + 30
    while any(exists(f"/proc/{pid}", as_absent) for pid in pids) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
