"""Pure: whether a failure is worth a restart, and whether the restart counts (docs/restart.md).

An *attempt* is the time from one start of the ranks to their end; the first is attempt 0.
"""

from typing import Annotated

from msgspec import Meta

from toolkit.exit_codes import MISCONFIGURED, NO_RETRY
from toolkit.records import Record, meaning

# The kinds of failure that are worth a restart: a failed rank of the script, and a hang. Any other (a failure before
# the script ran, a log rule, a vanished host, a fault of the toolkit) would come again, or a worse one.
WORTH = ("ExecuteUserScriptError", "Hang")
# With these exit codes a script refuses a restart itself: wrong configuration (EX_CONFIG), and that of a no-retry rule.
FINAL_CODES = (MISCONFIGURED, NO_RETRY)


class Restart(Record, frozen=True, kw_only=True):
    """The failure that ended an attempt, and the restart after it."""

    attempt: Annotated[int, Meta(ge=1, description="the attempt that began with this restart, 1 for the first restart")]
    host: Annotated[str, meaning("the host on which the attempt before it failed; empty if none is to blame (a hang)")]
    message: Annotated[str, meaning("why that attempt failed, in one or few lines")]
    process: Annotated[str, meaning("the process that failed first")] = ""
    rank: Annotated[Annotated[int, Meta(ge=0)] | None, meaning("its rank in the job")] = None
    exit_code: Annotated[int, Meta(ge=0, le=255, description="the exit code that the job would have ended with")] = 0
    failed_ns: Annotated[int, meaning("when that attempt failed, in nanoseconds since 1970")] = 0
    """On this host's monotonic clock; in outcome.json since 1970 (`outcome.dated`)."""
    counted: Annotated[bool, meaning("the restart used up one of those that TOOLKIT_RESTARTS allows")] = True


class Steps(Record, frozen=True, kw_only=True):
    """The progress of ranks in an attempt."""

    seen: bool = False
    """Any step was done."""
    highest: int | None = None
    """The highest step number reported, None if none was."""

    def and_those(self, other: "Steps") -> "Steps":
        """Return how far the ranks of *self* and *other* together came."""
        if not other.seen and other.highest is None:
            return self
        numbers = [number for number in (self.highest, other.highest) if number is not None]
        return Steps(seen=self.seen or other.seen, highest=max(numbers, default=None))


class Failure(Record, frozen=True, kw_only=True):
    """The failure of an attempt."""

    kind: str
    exit_code: int
    preempted: bool = False
    """Something outside the job ended a rank."""
    began: bool = True
    """The ranks of every host had been started."""
    stopped: bool = False
    """A stop was requested."""
    gone: tuple[str, ...] = ()
    """The hosts that vanished."""


class Budget(Record, frozen=True, kw_only=True):
    """The restarts of a job."""

    allowed: int
    """TOOLKIT_RESTARTS."""
    used: int = 0
    highest: int | None = None
    """The furthest step of any attempt."""

    def refusal(self, failure: Failure, steps: Steps) -> str:
        """Return why *failure*, in an attempt that came as far as *steps*, is not worth a restart; "" if it is."""
        if failure.stopped:
            return "a stop was requested"
        if failure.gone:
            return f"host {failure.gone[0]} is gone, and only a new job can replace it"
        if failure.kind not in WORTH:
            return f"{failure.kind or 'this end'} would come again"
        if failure.exit_code in FINAL_CODES:
            return f"exit code {failure.exit_code} says that trying again will not help"
        if not failure.began:
            return "the ranks had not been started on every host"
        if not steps.seen:
            return "no step was seen since the ranks were started (docs/restart.md says what counts as one)"
        if self.counts(failure, steps) and self.used >= self.allowed:
            return f"all of TOOLKIT_RESTARTS={self.allowed} are used up"
        return ""

    def counts(self, failure: Failure, steps: Steps) -> bool:
        """Return True if a restart after *failure* uses up one of those allowed.

        A preemption does not, if the attempt came further than all before it. So a job that makes no progress is not
        restarted forever.
        """
        return not (failure.preempted and self._is_further(steps))

    def after(self, failure: Failure, steps: Steps) -> "Budget":
        """Return the budget after a restart."""
        highest = Steps(highest=self.highest).and_those(steps).highest
        return Budget(allowed=self.allowed, used=self.used + self.counts(failure, steps), highest=highest)

    def _is_further(self, steps: Steps) -> bool:
        return steps.highest is not None and (self.highest is None or steps.highest > self.highest)


def news(restart: Restart, used: int, allowed: int, hosts: int) -> str:
    """Return *restart* in one line for the log."""
    who = f"{restart.process} of host {restart.host}" if restart.process else f"host {restart.host}"
    after = f" after {who} failed" if restart.host else ""  # A hang has no host.
    whose = "the ranks of all hosts" if hosts > 1 else "the ranks"
    count = f"{used} of {allowed}" if restart.counted else f"not counted, a preemption; {used} of {allowed} used"
    reason = restart.message.splitlines()[0] if restart.message else f"ended with {restart.exit_code}"
    return f"restart ({count}){after}: {reason}; attempt {restart.attempt} begins: {whose} are started again"


def times(restarts: int) -> str:
    """Return "after 2 restarts", "" for none."""
    return f"after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
