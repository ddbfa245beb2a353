"""The process that sends a host's metrics to one place: it follows output/metrics.jsonl and the monitor's newest
sample.

Each exporter has a process of its own, apart from the monitor: MLflow's client alone takes 76 MiB and 0.7 s of CPU,
more than the monitor may use, and a server that does not answer may block for minutes. What a server does not take is
sent again until it does, or the job ends; meanwhile it waits (`waiting`). Neither the job nor the other exporters
notice. Two threads: the main one sends, since some clients want that, and `_Watcher` never waits for a server.
"""

import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import msgspec

from toolkit import files
from toolkit.errors import UserError
from toolkit.job.exports import TRACKERS, ExportsConfig
from toolkit.metrics.sample import Sample
from toolkit.metrics.tail import MetricsTail
from toolkit.monitor.exporters import summary
from toolkit.monitor.exporters.exporter import Exporter, NotYetError, Tracker, reason, say
from toolkit.monitor.exporters.kept import Kept, Row
from toolkit.monitor.exporters.mlflow import MLflow
from toolkit.monitor.exporters.otel import OpenTelemetry
from toolkit.monitor.exporters.prometheus import Prometheus
from toolkit.monitor.exporters.tensorboard import TensorBoard
from toolkit.monitor.exporters.trackio import Trackio
from toolkit.monitor.exporters.waiting import MOST as MOST_WAITING
from toolkit.monitor.exporters.waiting import Waiting
from toolkit.monitor.exporters.wandb import WandB
from toolkit.records import Record, decode

_T = TypeVar("_T")
LOOK_S = 1.0
# A request costs a client milliseconds, whatever it holds, and a sample has a hundred columns: 0.1 % of a core at 10
# metrics a second does not allow more (scripts/bench exporters).
SEND_S = 20.0
FAILURES = 3
# Waits after failures in a row.
PAUSES_S = (1.0, 2.0, 5.0, 10.0)
# Of the second that `train` gives at the job's end (SWEEP_S): then the process says that values are missing.
LAST_S = 0.6
# What a last process gives a server that did not answer before.
DEAD_S = 5.0
MOST = 10_000  # Samples in memory at a time.


class Target(Record, frozen=True, kw_only=True):
    """One place for metrics."""

    make: Callable[[ExportsConfig, Kept], Exporter]
    """Return the exporter; whatever its client raises is raised."""
    is_remote: bool
    """A server may be gone for a while, so what failed is tried again for as long as the job runs; else FAILURES times
    in a row."""
    every_s: float
    """The time between two requests."""
    system_every_s: float = 10.0
    """The time between two samples of the monitor."""
    arrives_at_close: bool = False
    """The values of the last round have arrived only when the exporter has closed: its client holds them for a while,
    and may be ended with the attempt. What it took with it, the next process sends again."""
    numbers_steps: bool = True
    """A value without a step gets the number of the values before it as its step."""


EXPORTERS = {
    "prometheus": Target(make=Prometheus, is_remote=False, every_s=1.0, system_every_s=1.0, numbers_steps=False),
    "tensorboard": Target(make=TensorBoard, is_remote=False, every_s=1.0),
    "mlflow": Target(make=MLflow, is_remote=True, every_s=SEND_S, system_every_s=SEND_S),
    "wandb": Target(make=WandB, is_remote=True, every_s=SEND_S, system_every_s=SEND_S, arrives_at_close=True),
    "trackio": Target(make=Trackio, is_remote=True, every_s=SEND_S, system_every_s=SEND_S, arrives_at_close=True),
    "otel": Target(make=OpenTelemetry, is_remote=True, every_s=SEND_S, system_every_s=SEND_S),
}


class GivenUpError(Exception):
    """The exporter ends: a line has said why."""


class ExporterProcess:
    """One exporter of one host."""

    def __init__(self, config: ExportsConfig, target: Target, name: str, kept: Kept) -> None:
        self._config = config
        self._target = target
        self._name = name
        self._kept = kept
        self._tail = MetricsTail(config.metrics, skip_bytes=kept.sent_bytes)
        self.waiting = Waiting(kept.waiting)
        self.ends = threading.Event()
        self.all_is_sent = threading.Event()
        self.has_told_end = False
        self._exporter: Exporter | None = None
        self._failed_s: float | None = None
        self._has_closed = False
        # Samples of the monitor that a client has, which arrive when it has closed.
        self._handed_rows: deque[Row] = deque(maxlen=MOST_WAITING)

    def run(self) -> None:
        """Send until `ends` is set; then send the rest, and set `all_is_sent`."""
        try:
            self._exporter = self._persist(lambda: self._target.make(self._config, self._kept))
            if not self._target.arrives_at_close:
                self.keep()
            while not self.ends.is_set():
                self._settle()
                self._send_new()
                self.ends.wait(self._target.every_s)
            self._send_new()
            end = summary.read(self._config) if self._config.outcome is not None else None
            if end is not None:
                tracker = cast(Tracker, self._exporter)
                self._persist(lambda: tracker.finish(end))
                self.has_told_end = True
            self._close()
        except GivenUpError:
            return
        finally:
            self.keep()
            self.all_is_sent.set()

    @property
    def _the_exporter(self) -> Exporter:
        assert self._exporter is not None
        return self._exporter

    def _settle(self) -> None:
        """Take the values of the last round for arrived: their client has had `every_s` for them."""
        if self._target.arrives_at_close:
            self._kept.settle()
            self._handed_rows.clear()

    def _close(self) -> None:
        if not self._target.arrives_at_close:
            self._persist(self._the_exporter.close)
            return
        try:
            self._the_exporter.close()
            self._has_closed = not self._kept.is_failing
        except Exception as error:  # noqa: BLE001 - the other side must not touch the job
            if self._config.outcome is not None:
                say(f"{self._name}: {reason(error)}; the last metrics may not be there")

    def keep(self) -> None:
        """Write what the next process must know."""
        if self._target.arrives_at_close and not self._has_closed and not self._kept.has_given_up:
            self._kept.save_waiting([*self._handed_rows, *self.waiting.all()])
            return
        self._kept.waiting = self.waiting.all()
        self._kept.lost += self.waiting.lost
        self.waiting.lost = 0
        self._kept.save()

    def missing(self) -> str:
        """Return what has not arrived, in words; "" if all has."""
        values = _count_lines(self._config.metrics, self._kept.sent_bytes)
        samples = len(self.waiting.all())
        counts = {"value": (values, "metrics"), "sample": (samples, "the monitor")}
        return " and ".join(
            f"{count:,} {name}{'s' if count > 1 else ''} of {source}"
            for name, (count, source) in counts.items()
            if count
        )

    def _send_new(self) -> None:
        while new := list(islice(self._tail.read_new(), MOST)):
            counts = dict(self._kept.counts)
            numbered = [_numbered(sample, counts) for sample in new] if self._target.numbers_steps else new
            self._persist(partial(self._the_exporter.samples, numbered))
            self._kept.counts = counts
            self._kept.sent_bytes = self._tail.offset
            if not self._target.arrives_at_close:
                self.keep()
        while (row := self.waiting.first()) is not None:
            values = {name: float("nan") if value is None else value for name, value in row[1].items()}
            self._persist(partial(self._the_exporter.system, row[0], values))
            if self._target.arrives_at_close:
                self._handed_rows.append(row)
            self.waiting.done(row)

    def _persist(self, step: Callable[[], _T]) -> _T:
        """Return the result of *step*, which is tried again for as long as it fails.

        Raises:
            GivenUpError: it can never succeed, or has failed too often where no server is concerned.
        """
        failures = 0
        while True:
            try:
                done = step()
            except UserError as error:
                self._give_up(error)
            except NotYetError:
                if self.ends.wait(PAUSES_S[0]):
                    time.sleep(PAUSES_S[0] / 5)
            except Exception as error:  # noqa: BLE001 - the other side must not touch the job
                failures += 1
                if not self._target.is_remote and (failures == FAILURES or self._exporter is None):
                    self._give_up(error)
                self._note_failure(error)
                # At the end the time is short; the process is killed when it is up.
                if self.ends.wait(PAUSES_S[min(failures, len(PAUSES_S)) - 1]):
                    time.sleep(PAUSES_S[0] / 5)
            else:
                self._note_success()
                return done

    def _give_up(self, error: Exception) -> NoReturn:
        self._kept.has_given_up = True
        tries = "" if self._exporter is None else f"after {FAILURES} failures "
        more = "" if self._exporter is None else "more "
        say(f"{self._name}: {reason(error)}; {tries}no {more}metrics go there")
        raise GivenUpError

    def _note_failure(self, error: Exception) -> None:
        self._kept.is_failing = True
        if self._failed_s is None:
            self._failed_s = time.monotonic()
            say(f"{self._name}: {reason(error)}; metrics wait here and are sent again")

    def _note_success(self) -> None:
        self._kept.is_failing = False
        if self._failed_s is not None:
            lost = self.waiting.lost
            what = f"the oldest {lost:,} samples of the monitor are lost" if lost else "nothing is lost"
            say(f"{self._name}: it answers again after {time.monotonic() - self._failed_s:.0f} s; {what}")
            self._failed_s = None


def _numbered(sample: Sample, counts: dict[str, int]) -> Sample:
    """Return *sample* with a step: its own, else how many values its metric has had on its rank."""
    of = f"{'' if sample.rank is None else sample.rank}/{sample.name}"
    count = counts.get(of, 0)
    counts[of] = count + 1
    return sample if sample.step is not None else msgspec.structs.replace(sample, step=count)


def _count_lines(path: Path, start_byte: int) -> int:
    try:
        with files.opened(path) as file:
            file.seek(start_byte)
            return sum(1 for line in file if line.endswith(b"\n"))
    except OSError:
        return 0


class _Watcher(threading.Thread):
    """Adds the monitor's samples to the queue, and ends the process with a line if it still waits for the other side
    LAST_S after *wakeup*, a descriptor, became readable."""

    def __init__(self, process: ExporterProcess, config: ExportsConfig, name: str, kept: Kept, wakeup: int) -> None:
        super().__init__(daemon=True)
        self._process, self._config, self._name = process, config, name
        self._every_s, self._wakeup = EXPORTERS[name].system_every_s, wakeup
        self._was_failing = kept.is_failing
        self._newest_s = 0.0

    def run(self) -> None:
        """Watch until the job ends, then wait for the end of the process."""
        if self._config.outcome is not None:
            self._wait_last()
        else:
            look_s = LOOK_S if self._every_s <= LOOK_S else self._every_s / 4
            while not select.select([self._wakeup], [], [], look_s)[0]:
                self._look()
            self._look()
        self._process.ends.set()
        if not self._process.all_is_sent.wait(0 if self._config.outcome is not None else LAST_S):
            self._process.keep()
            self._say_missing()
            os._exit(0)

    def _wait_last(self) -> None:
        """Wait until the last process has sent all, or its time is up; that is short for a server that did not answer
        while the job ran."""
        select.select([self._wakeup], [], [], DEAD_S if self._was_failing else None)

    def _look(self) -> None:
        """Add the monitor's newest sample if it is new, and so much later than the last."""
        if self._config.latest is None:
            return
        try:
            latest = msgspec.json.decode(self._config.latest.read_bytes())
            time_s, values = float(latest["time_s"]), dict(latest["values"])
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
            return  # Not there yet.
        if time_s >= self._newest_s + self._every_s - LOOK_S / 2:
            self._newest_s = time_s
            self._process.waiting.add((time_s, values))

    def _say_missing(self) -> None:
        if self._config.outcome is not None:
            parts = [self._process.missing(), "" if self._process.has_told_end else "how it ended"]
            missing = " and ".join(filter(None, parts)) or "the answer to the last of it"
            say(
                f"{self._name}: the job ended while this was waiting for an answer: {missing} did not arrive;"
                f" {self._config.output} has all of it"
            )
        elif self._name not in TRACKERS:  # A tracker's next process sends the rest.
            say(f"{self._name}: the job ended while this was waiting; the last metrics may not be there")


def main(argv: list[str]) -> int:
    """Run the exporter *argv*[2] as the JSON file *argv*[1] says."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # Clients print greetings, which are no lines of the job.
    os.close(null)
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = decode(Path(argv[1]).read_bytes(), ExportsConfig, argv[1])
    name = argv[2]
    kept = Kept(config.state / f"exports-{name}.json", skip_bytes=config.skip_bytes, now_s=time.time)
    target = EXPORTERS[name]
    process = ExporterProcess(config, target, name, kept)
    if config.outcome is not None:
        if kept.has_given_up:
            return 0
        process.ends.set()
    _Watcher(process, config, name, kept, read_end).start()
    process.run()
    return 0
