"""Pure: decides which hosts of a job are stopped or killed, and when. Facts and times in, orders out.

a person or a limit stops the job   every host gets SIGTERM; hosts that still run after 120 s are killed
a second Ctrl-C                     every host is killed
a host fails                        the others get SIGTERM, and are killed after 120 s; the first failure is the job's
`--kill HOST@TIME`                  that host is killed, which counts as its failure
"""

from collections.abc import Sequence
from typing import Literal

from toolkit.exit_codes import INTERRUPTED, STOPPED, TEMPORARY_FAILURE
from toolkit.jobfile.spec import Kill
from toolkit.records import Record

GRACE_S = 120.0  # The platform's time between SIGTERM and SIGKILL (`docker stop -t 120`).

Order = Literal["stop", "kill"]
Reason = Literal["", "asked", "time", "max-run", "failed"]


class Lifecycle:
    """Decides which hosts are stopped or killed. Times are seconds from the start; each method returns orders as
    (order, host)."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        stop_after_s: float | None = None,
        max_run_s: float | None = None,
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
        self._limits: list[tuple[float, Reason]] = []
        if stop_after_s is not None:
            self._limits.append((stop_after_s, "time"))
        if max_run_s is not None:
            self._limits.append((max_run_s, "max-run"))

    @property
    def over(self) -> bool:
        return not self.running

    def asked_to_stop(self, now_s: float) -> list[tuple[Order, str]]:
        """Return the orders for a stop request: stop all hosts, or kill them if the job is already stopping."""
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
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s = None
            orders += self._kill_all()
        return orders

    def next_s(self) -> float | None:
        """Return the time of the next order that `due` returns, None if there is none."""
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
    """How the job ended, in the platform's terms. `host`: the host that failed first."""

    status: Literal["Completed", "Failed", "Stopped"]
    secondary: Literal["Completed", "Failed", "Stopped", "MaxRuntimeExceeded"]
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
    secondary: Literal["Stopped", "MaxRuntimeExceeded"]
    secondary = "MaxRuntimeExceeded" if lifecycle.reason == "max-run" else "Stopped"
    return JobEnd(status="Stopped", secondary=secondary, exit_code=INTERRUPTED if interrupted else STOPPED)
