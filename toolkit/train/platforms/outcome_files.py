"""Reports the end of a job on every platform: output/success or output/failure as SageMaker reads them, and
output/outcome.json.

Nothing here changes the outcome: a file that cannot be written is only logged.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from toolkit import files, paths
from toolkit.folders import as_absent, is_file, make, may_exist
from toolkit.job.job import Folders
from toolkit.job.outcome import Outcome
from toolkit.job.plan import quoted
from toolkit.log import Log
from toolkit.masking.text import mask_arguments
from toolkit.records import encode

# FailureReason is the first 1,024 characters of output/failure (API_DescribeTrainingJob).
LIMIT = 1024
OUTCOME = "outcome.json"
METRICS = "metrics.jsonl"


def clear_stale(folders: Folders, log: Log) -> None:
    """Remove the reports of an earlier run in this container, so that a report found later is this run's."""
    reports = (folders.success, folders.failure, folders.manifest)
    for file in (*reports, folders.output / OUTCOME, folders.output / METRICS):
        if not may_exist(file, follow_links=False):
            continue  # On a read-only file system, unlink() fails with EROFS even for a missing file.
        try:
            file.unlink()
        except OSError as error:
            log.warning(f"{file}: left by an earlier run; cannot be removed ({error.strerror})")


def report(folders: Folders, outcome: Outcome, log: Log) -> None:
    """Write the files of *outcome* and log it. A failure file that the script wrote itself is kept."""
    # Mask before the text is cut: half a secret would no longer be recognized.
    outcome = masked(outcome, log)
    for part, step in STEPS:
        log.attempt(f"{part} could not be written", partial(step, folders, outcome, log), None)


def _make_folder(folders: Folders, _outcome: Outcome, log: Log) -> None:
    try:
        make(folders.output)
    except OSError as error:
        log.warning(f"{folders.output}: cannot be created ({error.strerror})")


def _say(_folders: Folders, outcome: Outcome, log: Log) -> None:
    if outcome.exit_code == 0:
        log.info("Reporting training SUCCESS")
    elif outcome.status == "stopped":
        # A stop is no failure, and must not match a search for failures.
        log.warning(f"Training was stopped, exit code {outcome.exit_code}: {outcome.cause.message}")
    else:
        log.error("Reporting training FAILURE")
        if not log.brief:
            log.error(failure_text(outcome))


def _write_end(folders: Folders, outcome: Outcome, log: Log) -> None:
    if outcome.exit_code == 0:
        _write(folders.success, "", log)
        return
    _withdraw_success(folders.success, log)
    if not _says_something(folders.failure):
        _write(folders.failure, whole_text(outcome), log)


def _withdraw_success(file: Path, log: Log) -> None:
    """Remove a success file that the script wrote: someone who reads only that would think that this job succeeded."""
    if not may_exist(file, follow_links=False):
        return
    try:
        file.unlink()
        log.warning(f"{file}: removed: a program other than train wrote it, and this job did not succeed")
    except OSError as error:
        log.error(f"{file}: cannot be removed ({error.strerror}), but this job did not succeed")


def _write_story(folders: Folders, outcome: Outcome, log: Log) -> None:
    _write(folders.output / OUTCOME, _story(outcome), log)


# Each step runs even if another one raises.
STEPS: tuple[tuple[str, Callable[[Folders, Outcome, Log], None]], ...] = (
    ("the output folder", _make_folder),
    ("the job's end in the log", _say),
    ("the success or failure file", _write_end),
    (OUTCOME, _write_story),
)


def failure_text(outcome: Outcome, *, limit: int = LIMIT) -> str:
    """Return why the job failed in at most *limit* characters: kind, exit code, cause, where, command.

    The format is sagemaker-training's, which users' tools parse. A text that is too long loses the command's end first,
    then the cause's end; kind, exit code and the cause's beginning always stay. A plug-in's own text stays unchanged if
    it fits; a longer one keeps its end if it ends with a traceback, else its beginning.
    """
    if outcome.plugin_failure_text:
        return _own(outcome, limit)
    head = f"{_cut(outcome.cause.kind or 'Framework Error', 80)}:\nExitCode {outcome.exit_code}\n"
    place = _cut(place_of(outcome), 300)
    extra = f'\nExtraInfo "{place}"' if place else ""
    cause = f'ErrorMessage "{_cut(outcome.cause.message, limit - len(head) - len(extra) - 15)}"'
    text = f"{head}{cause}{extra}"
    room = limit - len(text) - len('\nCommand ""')
    if outcome.command and room >= 16:
        command = " ".join(quoted(token) for token in outcome.command)
        text += f'\nCommand "{_cut(command, room)}"'
    return text


def whole_text(outcome: Outcome) -> str:
    """Return the failure text with what did not fit into it: the content of output/failure."""
    return failure_text(outcome) + _rest(outcome)


def _own(outcome: Outcome, limit: int) -> str:
    head, _, rest = outcome.plugin_failure_text.partition("\n")
    room = limit - len(head) - len("\n...")
    if len(outcome.plugin_failure_text) <= limit or not outcome.cause.kind.endswith(" Error") or room < 0:
        return _cut(outcome.plugin_failure_text, limit)
    return f"{head}\n...{rest[-room:]}"


def place_of(outcome: Outcome) -> str:
    """Return who failed and how: "host algo-2, rank 3 (local rank 1), pid 71: killed by SIGKILL"."""
    rank = "" if outcome.cause.rank is None else f"rank {outcome.cause.rank}"
    if rank and outcome.cause.local_rank is not None:
        rank += f" (local rank {outcome.cause.local_rank})"
    parts = (
        f"host {outcome.cause_host}" if outcome.cause_host else "",
        rank or outcome.cause.process,
        f"pid {outcome.cause.pid}" if outcome.cause.pid is not None else "",
    )
    place = ": ".join(filter(None, (", ".join(filter(None, parts)), outcome.cause.process_end)))
    if outcome.cause.identical_failures:
        more = outcome.cause.identical_failures
        place += f"; {more} more rank{'s' if more > 1 else ''} with the same traceback"
    return ". ".join(filter(None, (place, outcome.cause.advice)))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 3, 0)] + "..."


def _rest(outcome: Outcome) -> str:
    """Return the part of the failure file after the failure text: the whole cause if it was cut, and the traceback."""
    if outcome.plugin_failure_text:
        return "" if outcome.plugin_failure_text == failure_text(outcome) else f"\n\n{outcome.plugin_failure_text}"
    parts = []
    if outcome.cause.message not in failure_text(outcome):
        parts.append(outcome.cause.message)
    if outcome.cause.traceback.strip() != outcome.cause.message.strip():
        parts.append(outcome.cause.traceback)
    if outcome.console_lost_bytes:
        parts.append(
            f"{outcome.console_lost_bytes} bytes of this host's output did not reach the console (notes in {OUTCOME})."
        )
    return "".join(f"\n\n{part.rstrip()}\n" for part in parts if part)


def _story(outcome: Outcome) -> str:
    return msgspec.json.format(encode(outcome), indent=2).decode() + "\n"


def masked(outcome: Outcome, log: Log) -> Outcome:
    """Return *outcome* with *log*'s secrets masked in the texts of scripts, files and users.

    Names, statuses, signals and advice stay: the words are ours, and a secret may equal one by chance ("failed"). A NUL
    in a masked text becomes U+FFFD, because programs in C stop reading at a NUL.
    """

    def mask(text: str) -> str:
        return log.mask(text).replace("\0", "\ufffd")

    return msgspec.structs.replace(
        outcome,
        cause=outcome.cause.masked(mask),
        stuck_ranks=tuple(
            msgspec.structs.replace(rank, file=mask(rank.file), function=mask(rank.function))
            for rank in outcome.stuck_ranks
        ),
        collectives=tuple(
            msgspec.structs.replace(
                one,
                places=tuple(
                    msgspec.structs.replace(place, file=mask(place.file), function=mask(place.function))
                    for place in one.places
                ),
            )
            for one in outcome.collectives
        ),
        command=tuple(map(mask, mask_arguments(outcome.command))),
        notes=tuple(map(mask, outcome.notes)),
        restarts=tuple(msgspec.structs.replace(restart, message=mask(restart.message)) for restart in outcome.restarts),
    )


def _says_something(file: Path) -> bool:
    try:
        return is_file(file, as_absent) and file.stat().st_size > 0
    except OSError:
        return False


def _write(file: Path, text: str, log: Log) -> None:
    """Write *text* completely, or leave no file and log why: a reader would take half a failure text for all of it, and
    another's file for ours. A link that the script made is replaced, not followed."""
    try:
        files.replace(file, paths.shown_text(text).encode())
    except OSError as error:
        log.error(f"{file}: cannot be written ({error.strerror}); the job's status stays as it is")
        try:
            file.unlink(missing_ok=True)
        except OSError:
            pass  # The error is logged above: the same fault prevents the removal.
