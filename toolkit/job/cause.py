"""The cause of a job's end: the verdict makes it once, and the outcome and the reports between hosts carry it."""

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from toolkit.job.ranges import Count, Nanoseconds, Rank
from toolkit.records import Record, meaning

# A Cause is a part of outcome.json, and of the reports between hosts. Its host stands beside it (`Outcome.cause_host`,
# `EndReport.host`).
Evidence = Literal["error", "output", "exit_code"]


class Cause(Record, frozen=True, kw_only=True):
    """The process that failed first, and why."""

    blame: Annotated[
        str,
        meaning(
            "who can mend it: user (the script and what it needs), job (its documents and settings), platform (the"
            " machine or the cluster) or toolkit; empty: nothing failed"
        ),
    ] = ""
    kind: Annotated[str, meaning("the kind of failure, the first word of output/failure; empty: nothing failed")] = ""
    message: Annotated[str, meaning("the cause in one or few lines")] = ""
    traceback: Annotated[str, meaning("the whole traceback of the exception; empty if there is none")] = ""
    process: Annotated[str, meaning("the process that failed first: rank 3, or script, torchrun, ...")] = ""
    pid: Annotated[Count | None, meaning("its process ID")] = None
    rank: Annotated[Rank | None, meaning("its rank in the job")] = None
    local_rank: Annotated[Rank | None, meaning("its rank on its host")] = None
    process_end: Annotated[
        str,
        meaning(
            "how it ended, in words (killed by SIGSEGV (signal 11)), with what this host and the restarts add to it"
        ),
    ] = ""
    evidence: Annotated[
        Evidence,
        meaning(
            "what the cause is based on: error (an exception, sys.exit, a signal, a crash's message), output (the last"
            " lines of a process that ended with a code of its own) or exit_code (the process printed nothing)"
        ),
    ] = "error"
    advice: Annotated[str, meaning("what to do about it, if the cause is a known one")] = ""
    primary: Annotated[
        bool, meaning("the failure is one of its own: it does not merely follow from the end of another process")
    ] = False
    peer_lost: Annotated[
        bool,
        meaning(
            "the process ended because another rank was gone, or its launcher ended it for that; with primary: the"
            " process is the rank that ended with 0, and was lost by the others"
        ),
    ] = False
    failed_ns: Annotated[
        Nanoseconds,
        meaning("when it failed, in nanoseconds since 1970; 0: not known"),
    ] = 0
    """On the monotonic clock of the host that holds this value; on the wire on the leader's (train/peers/clock.py); in
    outcome.json since 1970 (`outcome.dated`)."""
    fingerprint: Annotated[
        str, meaning("the error and its place: equal for ranks with the same traceback; empty: no exception")
    ] = ""
    identical_failures: Annotated[Count, meaning("how many more ranks had ended with the same traceback so far")] = 0
    preempted: Annotated[bool, meaning("something outside the job ended the process, as a preemption does")] = False

    @property
    def is_early_exit(self) -> bool:
        """True if the cause is a rank that ended with 0, and was lost by the others."""
        return self.primary and self.peer_lost

    def masked(self, mask: Callable[[str], str]) -> "Cause":
        """Return this cause with *mask* applied to the texts of scripts. The toolkit wrote the other texts itself."""
        return msgspec.structs.replace(
            self, message=mask(self.message), traceback=mask(self.traceback), fingerprint=mask(self.fingerprint)
        )
