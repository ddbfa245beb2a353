"""One host of a running job: its `train`, its output, and how `toolkit run` stops or kills it."""

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolkit.commands.report.speed import EPOCHS, STEPS, estimate_epochs_left_s, find_count
from toolkit.commands.simulate import collect, containers
from toolkit.commands.simulate.display import marked_block
from toolkit.commands.simulate.progress import HostProgress
from toolkit.commands.simulate.report import last_values
from toolkit.commands.simulate.reserve import is_full
from toolkit.commands.simulate.stage import StagedHost
from toolkit.commands.simulate.stream import HostStream
from toolkit.files import read
from toolkit.job.base_folders import below
from toolkit.job.documents.sagemaker_variables import BASE_DIR
from toolkit.metrics.sample import Sample
from toolkit.metrics.tail import MetricsTail
from toolkit.series import findings
from toolkit.series.step_records import StepTail
from toolkit.train.supervise.children import send_all, spawn
from toolkit.train.supervise.kernel import descendants, find_marked, prctl
from toolkit.train.supervise.liveness import state_of

SILENT_S = 5.0  # How long a stop waits for the first output of a container that is starting.
STARTING = "starting"
STATES_BEFORE_SCRIPT = (STARTING, "installing", "waiting")  # The script does not run yet.
LAST_LINES = 100  # Kept in memory, for a full disk that holds no log.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class SimulatedHost:
    """One host while the job runs."""

    def __init__(self, staged: StagedHost) -> None:
        self.staged = staged
        self.name = staged.setup.host
        self.pid = 0
        self.state = STARTING
        self.log = staged.log.open("wb", buffering=0)
        self.lost = ""  # Why the log lacks lines.
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self.streams: dict[int, HostStream] = {}
        self._error = ""
        self._followed = False
        self.newest: dict[str, Sample] = {}
        self._tail = MetricsTail(staged.setup.base / "output" / "metrics.jsonl")
        monitor = staged.setup.base / "output" / "monitor"
        self._steps = StepTail(monitor / "steps")
        self._findings = monitor / findings.NAME
        self._rules: tuple[str, ...] = ()
        self._hyperparameters: Mapping[str, Any] | None = None
        self._first_epoch: Sample | None = None
        self.closes_at_s: float | None = None
        self.has_output = False
        self.stops_at_s: float | None = None

    def start(self) -> None:
        """Start `train` with its two streams connected to our pipes."""
        pipes = [os.pipe(), os.pipe()]
        try:
            folder = self.staged.setup.base
            self.pid = spawn(
                (*self.staged.enter, *self.staged.argv),
                self.staged.environ,
                folder,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                prctl=prctl(),
            )
        finally:
            for _, write_end in pipes:
                os.close(write_end)
        for fd, (read_end, _) in zip((1, 2), pipes, strict=True):
            os.set_blocking(read_end, False)
            self.streams[read_end] = HostStream(fd)

    def keep(self, block: bytes, release: Callable[[], bool]) -> None:
        """Write *block*, whole lines, to the host's log. On a full disk *release* makes room, once."""
        self._last.extend(block.splitlines()[-LAST_LINES:])
        remaining = memoryview(block)
        while remaining:
            try:
                remaining = remaining[os.write(self.log.fileno(), remaining) :]
            except OSError as error:  # It must not end the job.
                if is_full(error) and release():
                    continue
                self.lost = str(error.strerror)
                return

    def last_line(self) -> str:
        """Return the last line that the script printed, "" if there is none."""
        lines = (line.decode("utf-8", "replace").strip() for line in reversed(self._last))
        return next((line for line in lines if line and not line.startswith("[toolkit]")), "")

    def bars(self, *, several: bool) -> tuple[str, ...]:
        """Return the newest states of progress bars, with the prefix that lines have: the rank, or the host if there
        are several."""
        states = [state for stream in self.streams.values() for state in stream.states.values()]
        blocks = [marked_block(self.name, state, several=several) for state in states]
        return tuple(_COLOURS.sub("", block.decode("utf-8", "replace").rstrip("\n")) for block in blocks)

    def update(self) -> None:
        """Read the newest samples and, once the host has ended, the cause of its failure."""
        samples = tuple(self._tail.read_new())
        self.newest = last_values(samples, self.newest)
        self._first_epoch = self._first_epoch or next((each for each in samples if each.name == "epoch"), None)
        self._steps.read_new()
        self._rules = self._read_rules()
        if self.state in STATES_BEFORE_SCRIPT:
            self.state = self.read_state()
        if self.state.startswith("ended") and not (self._error or self._followed):
            outcome = collect.outcomes((self.staged,)).get(self.name)
            self._followed = outcome is not None and outcome.cause_host not in ("", self.name)
            self._error = (
                outcome.cause.message.strip().rpartition("\n")[2] if outcome is not None and not self._followed else ""
            )

    def progress(self, *, several: bool) -> HostProgress:
        """Return this host's progress as of the last `update`."""
        return HostProgress(
            name=self.name,
            state=self.state,
            samples=tuple(self.newest.values()),
            error=self._error,
            followed=self._followed,
            bars=self.bars(several=several),
            steps_per_s=self._steps.measure_speed() if self.state == "running" else None,
            left_s=self._estimate_left_s() if self.state == "running" else None,
            findings=self._rules,
        )

    def _read_rules(self) -> tuple[str, ...]:
        """Return the names of the rules that have found something on this host."""
        try:
            return tuple(dict.fromkeys(finding.rule for finding in findings.read(self._findings)))
        except OSError:
            return ()  # The report says that the file cannot be read.

    def _estimate_left_s(self) -> float | None:
        """Return the seconds until the steps, or else the epochs, are done that the hyperparameters ask for; None: it
        cannot be told."""
        if self._hyperparameters is None:
            self._hyperparameters = self._read_hyperparameters()
        steps = find_count(self._hyperparameters, STEPS)
        if steps is not None:
            speed = self._steps.measure_speed()
            left = steps - self._steps.done
            return left / speed if speed and self._steps.done and left > 0 else None
        epochs = find_count(self._hyperparameters, EPOCHS)
        if epochs is None or self._first_epoch is None:
            return None
        return estimate_epochs_left_s(epochs, (self._first_epoch, self.newest["epoch"]), time.time())

    def _read_hyperparameters(self) -> Mapping[str, Any]:
        path = self.staged.setup.base / "input" / "config" / "hyperparameters.json"
        try:
            document = msgspec.json.decode(read(path))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def read_state(self) -> str:
        """Return what `train` does: "starting", "installing", "waiting" for other hosts, or "running"."""
        return state_of(below(str(self.staged.setup.base), self.staged.environ).scratch, self.pid)

    def stop(self, now_s: float) -> None:
        """Ask for SIGTERM to `train` at *now_s*."""
        self.stops_at_s = now_s

    def vanish(self) -> None:
        """Send SIGKILL to every process of this host. Three passes also catch processes that others fork meanwhile."""
        marker = f"{BASE_DIR}={self.staged.setup.base}".encode()
        for _ in range(3):
            pids = {pid for root in find_marked(marker) | {self.pid} for pid in (root, *descendants(root))}
            send_all(pids, signal.SIGKILL)

    def sweep(self) -> None:
        """Send SIGKILL to what an ended `train` has left: a lost machine takes everything with it."""
        marker = f"{BASE_DIR}={self.staged.setup.base}".encode()
        send_all(find_marked(marker), signal.SIGKILL)


class ContainedHost(SimulatedHost):
    """One host in a container; `pid` is that of `docker run`."""

    def read_state(self) -> str:
        """Return "running" once the container has printed something: what `train` does in it cannot be seen here."""
        return "running" if self.has_output else STARTING

    def stop(self, now_s: float) -> None:
        """As for a process, but wait up to SILENT_S for `train`'s first output.

        Before the container exists, SIGTERM ends only the client; and the kernel drops a signal to a PID 1 that has no
        handler yet.
        """
        self.stops_at_s = now_s if self.has_output else now_s + SILENT_S

    def vanish(self) -> None:
        """Have the engine send SIGKILL to every process in the container."""
        containers.kill(self.staged.container, self.staged.environ)

    def sweep(self) -> None:
        """Nothing outlives the container's `train`."""
