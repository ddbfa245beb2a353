"""Reports a job's end. The steps are independent: an error in one changes neither the status nor the other steps."""

import time

import msgspec

from toolkit.job.job import Folders
from toolkit.job.outcome import Outcome, dated
from toolkit.log import Log
from toolkit.platforms.table import Platform
from toolkit.supervise.console import Outlets


def report(platform: Platform, folders: Folders, outcome: Outcome, outlets: Outlets, log: Log) -> None:
    """Report how the job ended. No error here changes that, or prevents the other reports."""
    final = log.attempt(
        "the console's losses could not be reported", lambda: _with_loss(outcome, outlets, log), outcome
    )
    to_wall_ns = time.time_ns() - time.monotonic_ns()
    final = log.attempt("the times could not be converted", lambda: dated(final, to_wall_ns), final)
    log.attempt("the end could not be reported", lambda: platform.report(folders, final, log), None)
    log.attempt("the last lines could not be written", log.flush, None)


def _with_loss(outcome: Outcome, outlets: Outlets, log: Log) -> Outcome:
    """Return *outcome* with the number of bytes that the console did not take; try to log it there."""
    outlets.flush()
    lost_bytes, sentence = outlets.lost()
    if not sentence:
        return outcome
    log.warning(sentence)
    return msgspec.structs.replace(outcome, lost_bytes=lost_bytes, notes=(*outcome.notes, sentence))
