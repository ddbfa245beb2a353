"""The cause of a job's end: the verdict makes it once, and the outcome and the reports between hosts carry it."""

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import field

from toolkit.job.ranges import Count, Nanoseconds, Rank
from toolkit.records import Record

# What a cause rests on: a reason (an exception, sys.exit, a signal, a crash's words), the last words of a process that
# ended with a code of its own, or nothing that it said.
Grounds = Literal["reason", "words", "nothing"]


class Cause(Record, frozen=True, kw_only=True):
    """Which process failed first, and why. The host stands beside it: a host that reports no failure has a name, too.

    The encoded names are those of outcome.json.

    `text`: the cause in one or few lines. `ended`: how the process ended ("killed by SIGSEGV (signal 11)").
    `grounds`: what the cause is based on.
    `primary`: the cause is one of its own, not collateral of another process's end. `lost`: the process ended because
    another rank of the job was gone, or its launcher ended it for that.
    `failed_ns`: when, on the monotonic clock of the host that holds this value; on the wire on the leader's
    (train/peers/clock.py). 0: not known.
    `fingerprint`: error and place, for folding identical tracebacks; `identical_failures`: how many more ranks had
    ended with the same one so far.
    `preempted`: somebody outside the job ended the process.
    """

    blame: str = ""
    kind: str = ""
    text: str = field(default="", name="cause")
    traceback: str = ""
    process: str = ""
    pid: Count | None = None
    rank: Rank | None = None
    local_rank: Rank | None = None
    ended: str = ""
    grounds: Grounds = "reason"
    advice: str = ""
    primary: bool = False
    lost: bool = False
    failed_ns: Nanoseconds = 0
    fingerprint: str = field(default="", name="same")
    identical_failures: Count = field(default=0, name="alike")
    preempted: bool = False

    @property
    def is_early_exit(self) -> bool:
        """True if the cause is a rank that ended with 0, and was lost by the others."""
        return self.primary and self.lost

    def masked(self, mask: Callable[[str], str]) -> "Cause":
        """Return this cause with *mask* applied to what scripts have said. The other texts are words of ours."""
        return msgspec.structs.replace(
            self, text=mask(self.text), traceback=mask(self.traceback), fingerprint=mask(self.fingerprint)
        )
