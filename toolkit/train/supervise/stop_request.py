"""Requests scripts that use toolkit.status to stop at a common step, and finds those that write checkpoints.

The request goes through the run's status pages, before any signal. Other scripts get only the signal.
"""

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from toolkit.job.events import RankDone
from toolkit.log import Log
from toolkit.status_pages import pages as status_pages
from toolkit.train.supervise.process import PhaseProcess

STATUS_FOLDER = "status"


class StopRequest:
    """The stop request of one phase, written to the status pages."""

    def __init__(self, run_folder: Path, log: Log) -> None:
        self._folder = run_folder / STATUS_FOLDER
        self._log = log
        self._request: status_pages.StopNotice | None = None

    def prepare(self, number: int, requested_at_ns: int | None, grace_s: float) -> None:
        """Make the request: signal *number* came at *requested_at_ns* (monotonic), and *grace_s* seconds are left."""
        self._request = status_pages.StopNotice(
            requested_at_ns=requested_at_ns or time.monotonic_ns(),
            deadline_ns=time.monotonic_ns() + int(grace_s * 1e9),
            signal=number,
        )

    def write(self, step: int | None) -> None:
        """Write the request for every rank here, with the step at which all stop; None: it is not known yet."""
        if self._request is None:
            return
        self._request = msgspec.structs.replace(self._request, stop_step=step)
        try:
            status_pages.request_stop(self._folder, self._request)
        except OSError as error:
            self._log.debug(f"status page: {error}")

    def show_done(self, done: RankDone) -> None:
        """Let the ranks here see that a rank has ended with 0."""
        try:
            status_pages.write_done(self._folder, f"{done.process} of host {done.host}")
        except OSError as error:
            self._log.warning(f"no rank can see that {done.process} of host {done.host} has ended: {error}")

    def step_by(self, pids: Iterable[int], seconds: float) -> int:
        """Return the step that none of *pids* will have passed *seconds* from now; 0 if none reports steps."""
        pages = status_pages.read_all(self._folder)
        now_ns = time.monotonic_ns()
        return status_pages.choose_stop_step(
            (pages[pid] for pid in pids if pid in pages), now_ns, now_ns + int(seconds * 1e9)
        )

    def holding(self, processes: Iterable[PhaseProcess]) -> list[str]:
        """Return the names of the processes that hold a checkpoint open."""
        return sorted(process.name for process in processes if self._is_holding(process.pid))

    def _is_holding(self, pid: int) -> bool:
        page = status_pages.read_rank(self._folder / f"rank-{pid}")
        return page is not None and page.holding > 0
