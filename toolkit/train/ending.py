"""Reports a job's end. The steps are independent: an error in one changes neither the status nor the other steps."""

import errno
import os
import time
from collections.abc import Mapping

import msgspec

from toolkit.job.job import Folders
from toolkit.job.outcome import Outcome, dated
from toolkit.log import Log
from toolkit.train import outcomes, within
from toolkit.train.platforms import table as platforms
from toolkit.train.supervise.console import Outlets


def report(platform: platforms.Platform, folders: Folders, outcome: Outcome, outlets: Outlets, log: Log) -> None:
    """Report how the job ended. No error here changes that, or prevents the other reports."""
    log.attempt("no file can be opened for the report", _leave_a_descriptor, None)
    final = log.attempt(
        "the console's losses could not be reported", lambda: _with_loss(outcome, outlets, log), outcome
    )
    final = log.attempt("the times could not be converted", lambda: _dated(final), final)
    log.attempt("the end could not be reported", lambda: platform.report(folders, final, log), None)
    log.attempt("the last lines could not be written", log.flush, None)


def report_fault(environ: Mapping[str, str], error: BaseException, log: Log) -> int:
    """Report the job that *error* ended outside of all steps of `train` (cli/outermost.py); return its exit code.

    The job has not begun, so what its output folder says is of an earlier run.
    """
    platform = platforms.detect(environ)
    folders = platform.folders(environ)
    log.hide(environ)
    outcome = outcomes.of_any(error, "")
    if within.is_inside(environ):
        log.error(outcome.cause.message)  # Report nothing: the job's files belong to the run that is active.
        return outcome.exit_code
    log.attempt("an earlier run's files could not be removed", lambda: platform.clear_stale(folders, log), None)
    report(platform, folders, outcome, Outlets(), log)
    return outcome.exit_code


def _leave_a_descriptor() -> None:
    """Close standard input if no descriptor is left: the files of the end need one, and nothing reads it any more."""
    try:
        os.close(os.dup(2))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            os.close(0)


def _dated(outcome: Outcome) -> Outcome:
    return dated(outcome, time.time_ns() - time.monotonic_ns())


def _with_loss(outcome: Outcome, outlets: Outlets, log: Log) -> Outcome:
    """Return *outcome* with the number of bytes that the console did not take; try to log it there."""
    outlets.flush()
    lost_bytes, sentence = outlets.lost()
    if not sentence:
        return outcome
    log.warning(sentence)
    return msgspec.structs.replace(outcome, console_lost_bytes=lost_bytes, notes=(*outcome.notes, sentence))
