"""`toolkit run` as a person uses it: a process, its console, and the job's folder."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from toolkit.train.supervise.kernel import find_marked

PROGRAMS = Path(__file__).parents[2] / "programs"
COMMAND = (sys.executable, "-m", "toolkit.cli.main", "run")
ROOT = Path(__file__).parents[3]
DEADLINE_S = 240


class ToolkitRun:
    """A run of `toolkit run`, without the system monitor: it takes a fifth of a second of CPU from each host's start.
    Its console is one stream, so that the lines keep their order."""

    python = sys.executable  # A subclass names the interpreter of another environment.
    deadline_s = DEADLINE_S

    def __init__(self, folder: Path, program: str, *words: str, **environ: str) -> None:
        self.folder = folder / "job"
        self.console = ""
        argv = (self.python, *COMMAND[1:], str(self.program(program)), "--job-dir", str(self.folder), *words)
        self._process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TOOLKIT_MONITOR": "off", **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def program(name: str) -> Path:
        """Return the path of one of the test programs (an absolute path is that path)."""
        return PROGRAMS / name

    def __enter__(self) -> "ToolkitRun":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def until(self, words: str, times: int = 1) -> None:
        """Wait for *times* lines with *words* in them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.console += line
            times -= words in line
            if not times:
                return
        raise AssertionError(f"{words!r} was not said in:\n{self.console}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Return its exit code; fail with its console if it does not end within `deadline_s`."""
        try:
            self.console += self._process.communicate(timeout=self.deadline_s)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.console += self._process.communicate()[0]
            raise AssertionError(f"still running after {self.deadline_s} s:\n{self.console}") from None
        return self._process.returncode

    @property
    def report(self) -> dict[str, Any]:
        """The content of job.json."""
        report: dict[str, Any] = json.loads((self.folder / "job.json").read_bytes())
        return report

    @property
    def codes(self) -> dict[str, int]:
        return {host: end["exit_code"] for host, end in self.report["hosts"].items()}

    def left_running(self, hosts: int) -> set[int]:
        """Return the pids of this job's processes."""
        bases = [self.folder / "hosts" / f"algo-{number}" / "opt/ml" for number in range(1, hosts + 1)]
        return {pid for base in bases for pid in find_marked(f"SAGEMAKER_BASE_DIR={base}".encode())}

    def all_ended_within(self, seconds: float, hosts: int) -> bool:
        """Return True once no process of this job runs, False if some still run after *seconds*."""
        until_s = time.monotonic() + seconds
        while self.left_running(hosts):
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        return True

    def archive(self, name: str) -> dict[str, bytes]:
        """Return the files in an archive of the job."""
        with tarfile.open(self.folder / name) as tar:
            files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            return {name: file.read() for name, file in files.items() if file is not None}


def tracker_run(folder: Path, host: str = "algo-1") -> str:
    """Return the digest of the ID of the run that *host* of the job in *folder* has in trackers."""
    manifest = json.loads((folder / "hosts" / host / "opt/ml/output/manifest.json").read_text())
    digest: str = manifest["environment"]["TOOLKIT_TRACKER_RUN"]
    return digest
