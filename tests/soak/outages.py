"""Pure: when the soak's storage fails and how, and whether a host reported it.

An outage lasts 20 to 45 s, and 20 to 60 s pass between two. In an outage every request of the host fails. If it lasts
long enough after a failed request, and no restart of the ranks ends the uploading process meanwhile, the host must
report it. It may report a failure only in an outage, after an answer that a busy machine delayed, or soon after these.
"""

import itertools
import random
from typing import Literal

from tests.storage.servers import Fault

FAULTS: tuple[Fault, ...] = ("500", "403", "reset", "stall", "half", "lost")
PAUSE_S, OUTAGE_S = (20.0, 60.0), (20.0, 45.0)
# TOOLKIT_STORAGE_TIMEOUT_S: after this the toolkit gives a request up.
TIMEOUT_S = 8.0
# An answer that takes longer is a failure, too.
SLOW_S = 2.0
# A request that stalls to its end, and the repetition that began just before.
CERTAIN_AFTER_S = 3 * TIMEOUT_S
# From the end of an outage to the line about it: the requests' time, on a busy machine, and a console not read for 3 s.
TOLD_WITHIN_S = 25.0
Report = Literal["fails", "works"]
Span = tuple[float, float]


class Outage:
    """Requests fail from *began_s* to *ended_s*, each by one of *kinds*. `failed_s`: when they failed."""

    def __init__(self, began_s: float, ended_s: float, kinds: tuple[Fault, ...]) -> None:
        self.began_s, self.ended_s, self.kinds = began_s, ended_s, kinds
        self.failed_s: list[float] = []

    def is_certain(self, restarts: list[Span]) -> bool:
        """True if the toolkit must have given up a request in it."""
        return any(
            at_s + CERTAIN_AFTER_S < self.ended_s
            and not any(from_s < at_s + CERTAIN_AFTER_S and at_s < to_s for from_s, to_s in restarts)
            for at_s in self.failed_s
        )


class Outages:
    """The outages of one host's storage. All times are of one clock."""

    def __init__(self, chosen: random.Random, now_s: float) -> None:
        self._random = chosen
        self.all: list[Outage] = []
        self.slow: list[Span] = []
        self._is_last = False
        self._plan(now_s)

    def fault(self, now_s: float) -> Fault:
        """Return how a request that comes now fails, "" if it does not."""
        if now_s >= self.all[-1].ended_s and not self._is_last:
            self._plan(now_s)
        now = self.all[-1]
        if not now.began_s <= now_s < now.ended_s:
            return ""
        now.failed_s.append(now_s)
        return self._random.choice(now.kinds)

    def answered(self, began_s: float, ended_s: float) -> None:
        """Note that an answer took from *began_s* to *ended_s*."""
        if ended_s - began_s > SLOW_S:
            self.slow.append((began_s, ended_s))

    def end(self, now_s: float, *, down: bool) -> None:
        """Let requests succeed from now on; *down*: let all fail."""
        self._is_last = True
        self.all[-1].ended_s = min(self.all[-1].ended_s, now_s)
        if down:
            self.all.append(Outage(now_s, float("inf"), FAULTS))

    def _plan(self, now_s: float) -> None:
        began_s = now_s + self._random.uniform(*PAUSE_S)
        kinds = self._random.sample(FAULTS, self._random.choice((1, len(FAULTS))))
        self.all.append(Outage(began_s, began_s + self._random.uniform(*OUTAGE_S), tuple(kinds)))

    def faults(self, reports: list[tuple[float, Report]], restarts: list[Span]) -> list[str]:
        """Return what is wrong with a host's *reports* of its uploads, each with the time when it came."""
        wrong = []
        for earlier, after in itertools.pairwise(reports):
            if earlier[1] == after[1] == "works":
                wrong.append("it was reported twice in a row that uploads work again")
        failing = [(outage.began_s, outage.ended_s) for outage in self.all] + self.slow
        for at_s, report in reports:
            if report == "fails" and not any(from_s <= at_s <= to_s + TOLD_WITHIN_S for from_s, to_s in failing):
                wrong.append("a failed upload was reported while storage worked")
        for outage in self.all:
            if outage.ended_s == float("inf") or not outage.is_certain(restarts):
                continue
            states = [report for at_s, report in reports if at_s <= outage.began_s][-1:]
            states += [report for at_s, report in reports if outage.began_s < at_s <= outage.ended_s + TOLD_WITHIN_S]
            if "fails" not in states:
                wrong.append(f"an outage of {outage.ended_s - outage.began_s:.0f} s was not reported")
        return wrong
