"""Pure: decides which hosts of a job are stopped or killed, and when. Facts and times in, orders out.

a person or a limit stops the job   every host gets SIGTERM; hosts that still run after 120 s are killed
a second Ctrl-C                     every host is killed
a host fails                        the others get SIGTERM, and are killed after 120 s; the first failure is the job's
`--kill HOST@TIME`                  that host is killed, which counts as its failure
a spot interruption                 every host gets SIGTERM, and is killed after 120 s; the job then starts again

A lifecycle is one start of the job's hosts; a job without interruptions has one.
"""

from collections.abc import Sequence
from typing import Literal

from toolkit.exit_codes import INTERRUPTED, STOPPED, TEMPORARY_FAILURE
from toolkit.job.file.job_file import Interrupt, Kill, LocalRun
from toolkit.records import Record

GRACE_S = 120.0  # The platform's time between SIGTERM and SIGKILL (`docker stop -t 120`).

Order = Literal["stop", "kill"]
# Why the hosts are being stopped. "max-wait": the time for training and waiting together is over.
Reason = Literal["", "asked", "time", "max-run", "max-wait", "failed", "interrupted"]
# The job ends for these; after an interruption it starts again.
LIMITS: dict[Reason, Literal["Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"]] = {
    "asked": "Stopped",
    "time": "Stopped",
    "max-run": "MaxRuntimeExceeded",
    "max-wait": "MaxWaitTimeExceeded",
}


class Lifecycle:
    """Decides which hosts are stopped or killed. Times are seconds from the start; each method returns orders as
    (order, host)."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        stop_after_s: float | None = None,
        max_run_s: float | None = None,
        max_wait_s: float | None = None,
        interrupt_s: float | None = None,
        kills: Sequence[Kill] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        self.running = list(hosts)
        self.codes: dict[str, int] = {}
        self.vanished: set[str] = set()
        self.failures: list[str] = []
        self.reason: Reason = ""
        self._grace_s = grace_s
        self._kill_at_s: float | None = None
        self._kills = sorted(kills, key=lambda kill: kill.after_s)
        limits: dict[Reason, float | None] = {
            "time": stop_after_s,
            "max-run": max_run_s,
            "max-wait": max_wait_s,
            "interrupted": interrupt_s,
        }
        self._limits = [(after_s, reason) for reason, after_s in limits.items() if after_s is not None]

    @property
    def over(self) -> bool:
        return not self.running

    def compute_limit_left_s(self, now_s: float) -> float | None:
        """Return the seconds until max-run ends the job, None if it does not."""
        return next((after_s - now_s for after_s, reason in self._limits if reason == "max-run"), None)

    def request_stop(self, now_s: float) -> list[tuple[Order, str]]:
        """Return the orders for a stop request: stop all hosts, or kill them if the job is already stopping.

        Hosts that are being interrupted have their SIGTERM already; the request then keeps the job from starting again.
        """
        if self.reason == "interrupted":
            self.reason = "asked"
            return []
        return self._kill_all() if self.reason else self._stop_all("asked", now_s)

    def ended(self, host: str, code: int, now_s: float) -> list[tuple[Order, str]]:
        """Return the orders after *host*'s `train` has ended with *code* (128 + number if a signal killed it)."""
        if host in self.running:
            self.running.remove(host)
        self.codes[host] = code
        if code == 0 and host not in self.vanished:
            return []
        if not self.reason or self.reason == "failed":
            self.failures.append(host)
        return [] if self.reason else self._stop_all("failed", now_s)

    def due(self, now_s: float) -> list[tuple[Order, str]]:
        """Return the orders that are due at *now_s*."""
        orders: list[tuple[Order, str]] = []
        if self.over:
            return orders  # The hosts' output is still read; a limit that passes meanwhile changes nothing.
        while self._kills and self._kills[0].after_s <= now_s:
            host = self._kills.pop(0).host
            if host in self.running:
                self.vanished.add(host)
                orders.append(("kill", host))
        for after_s, reason in sorted(self._limits):
            if after_s <= now_s:
                self._limits.remove((after_s, reason))
                if not self.reason:
                    orders += self._stop_all(reason, now_s)
                elif self.reason == "interrupted":
                    self.reason = reason
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s = None
            orders += self._kill_all()
        return orders

    def next_s(self) -> float | None:
        """Return the time of the next order that `due` returns, None if there is none."""
        if self.over:
            return None
        times = [kill.after_s for kill in self._kills] + [after_s for after_s, _ in self._limits]
        if self._kill_at_s is not None:
            times.append(self._kill_at_s)
        return min(times, default=None)

    def _stop_all(self, reason: Reason, now_s: float) -> list[tuple[Order, str]]:
        self.reason = reason
        self._kill_at_s = now_s + self._grace_s
        return [("stop", host) for host in self.running]

    def _kill_all(self) -> list[tuple[Order, str]]:
        return [("kill", host) for host in self.running]


class JobEnd(Record, frozen=True, kw_only=True):
    """The end of the job, in the platform's terms. `host`: the host that failed first."""

    status: Literal["Completed", "Failed", "Stopped"]
    secondary: Literal["Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"]
    exit_code: int
    host: str = ""


def job_end(lifecycle: Lifecycle, *, interrupted: bool = False, first: str = "") -> JobEnd:
    """Return how the job of the finished *lifecycle* ended; *first*: the host that failed first, if known.

    A job that was stopped early does not count as completed, even if its scripts ended with 0.
    """
    if lifecycle.failures:
        host = first or next((host for host in lifecycle.failures if host in lifecycle.vanished), lifecycle.failures[0])
        code = TEMPORARY_FAILURE if host in lifecycle.vanished else lifecycle.codes[host]
        return JobEnd(status="Failed", secondary="Failed", exit_code=code, host=host)
    if lifecycle.reason in ("", "failed"):
        return JobEnd(status="Completed", secondary="Completed", exit_code=0)
    code = INTERRUPTED if interrupted else STOPPED
    return JobEnd(status="Stopped", secondary=LIMITS[lifecycle.reason], exit_code=code)


def next_start(hosts: Sequence[str], run: LocalRun, *, trained_s: float = 0.0, passed_s: float = 0.0) -> Lifecycle:
    """Return the lifecycle of the start that begins after *trained_s* seconds of training, *passed_s* after the job.

    Interruptions, `--kill` and `--max-run` count the seconds of training; `--stop-after` and `--max-wait` also count
    those in which the job waited.
    """
    due = next_interrupt(run, trained_s)
    kills = [
        Kill(host=kill.host, after_s=kill.after_s - trained_s)
        for kill in run.kills
        if not trained_s or kill.after_s > trained_s
    ]
    return Lifecycle(
        hosts,
        stop_after_s=None if run.stop_after_s is None else run.stop_after_s - passed_s,
        max_run_s=None if run.max_run_s is None else run.max_run_s - trained_s,
        max_wait_s=None if run.max_wait_s is None else run.max_wait_s - passed_s,
        interrupt_s=None if due is None else due.after_s - trained_s,
        kills=kills,
    )


def next_interrupt(run: LocalRun, trained_s: float) -> Interrupt | None:
    """Return the interruption that a start after *trained_s* seconds of training meets; 0: the first start."""
    return next((interrupt for interrupt in run.interrupts if not trained_s or interrupt.after_s > trained_s), None)
