"""The process that sends a host's metrics to one place: it follows output/metrics.jsonl and the monitor's newest
sample.

Each exporter has a process of its own, apart from the monitor: MLflow's client alone takes 76 MiB and 0.7 s of CPU,
more than the monitor may use, and a server that does not answer may block for minutes. After three failures in a row
the process ends with one line; neither the job nor the other exporters notice.
"""

import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from toolkit.job.exports import ExportsConfig
from toolkit.metrics.tail import SampleReader
from toolkit.monitor.exporters.exporter import Exporter, reason, say
from toolkit.monitor.exporters.mlflow import MLflow
from toolkit.monitor.exporters.prometheus import Prometheus
from toolkit.monitor.exporters.tensorboard import TensorBoard
from toolkit.records import decode

LOOK_S = 1.0
FAILURES = 3
# Of the second that `train` gives at the job's end (SWEEP_S): then the process says that values are missing.
LAST_S = 0.6
MOST = 10_000  # Samples in memory at a time.
EXPORTERS: dict[str, Callable[[ExportsConfig], Exporter]] = {
    "prometheus": Prometheus,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}


class ExporterProcess:
    """One exporter of one host."""

    def __init__(self, config: ExportsConfig, exporter: Exporter, name: str) -> None:
        self._config = config
        self._exporter = exporter
        self._name = name
        self._reader = SampleReader(config.metrics, skip_bytes=config.skip_bytes)
        self._failures = 0
        self._latest_s = 0.0

    def run(self, wakeup: int, sent: Callable[[], None] = lambda: None) -> None:
        """Send until *wakeup*, a descriptor, is readable; then send the rest, and call *sent*."""
        ends = False
        while not ends and self._failures < FAILURES:
            ends = bool(select.select([wakeup], [], [], LOOK_S)[0])
            self._look()
        sent()
        self._attempt(self._exporter.close)

    def _look(self) -> None:
        new = list(self._reader.new())
        for start in range(0, len(new), MOST):
            self._attempt(self._exporter.samples, new[start : start + MOST])
        system = self._system()
        if system is not None:
            self._attempt(self._exporter.system, *system)

    def _attempt(self, send: Callable[..., None], *values: object) -> None:
        try:
            send(*values)
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - the other side must not touch the job
            self._failures += 1
            if self._failures == FAILURES:
                say(f"{self._name}: {reason(error)}; after {FAILURES} failures no more metrics go there")

    def _system(self) -> tuple[float, dict[str, float]] | None:
        """Return the monitor's newest sample if it is new."""
        if self._config.latest is None:
            return None
        try:
            latest = msgspec.json.decode(self._config.latest.read_bytes())
            time_s, values = float(latest["time_s"]), latest["values"]
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
            return None  # Not there yet.
        if time_s <= self._latest_s:
            return None
        self._latest_s = time_s
        return time_s, {name: float("nan") if value is None else float(value) for name, value in values.items()}


class _LastWord(threading.Thread):
    """Ends the process with a line if it still waits for the other side LAST_S after *wakeup* became readable."""

    def __init__(self, name: str, wakeup: int) -> None:
        super().__init__(daemon=True)
        self._name, self._wakeup = name, wakeup
        self._all_is_sent = threading.Event()
        self.missing = "no metrics are"

    def all_is_sent(self) -> None:
        """There is nothing to wait for."""
        self._all_is_sent.set()

    def run(self) -> None:
        """Wait for the end of the job, then for that of the process."""
        select.select([self._wakeup], [], [])
        if not self._all_is_sent.wait(LAST_S):
            say(f"{self._name}: the job ended while this was waiting for an answer; {self.missing} there")
            os._exit(0)


def main(argv: list[str]) -> int:
    """Run the exporter *argv*[2] as the JSON file *argv*[1] says."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = decode(Path(argv[1]).read_bytes(), ExportsConfig, argv[1])
    name = argv[2]
    last_word = _LastWord(name, read_end)
    last_word.start()
    try:
        exporter = EXPORTERS[name](config)
    except Exception as error:  # noqa: BLE001 - whatever a client raises, the job goes on without it
        say(f"{name}: {reason(error)}; no metrics go there")
        return 0
    last_word.missing = "the last metrics may not be"
    ExporterProcess(config, exporter, name).run(read_end, last_word.all_is_sent)
    return 0
