"""Reads the failure text that a framework plug-in wrote itself (rank/hook/plugin.py). It replaces `train`'s own."""

from pathlib import Path

import msgspec

from toolkit import files
from toolkit.errors import ContractError
from toolkit.job.outcome import Outcome
from toolkit.records import Record, decode

NAME = "plugin.json"


class Word(Record, frozen=True, kw_only=True):
    """The content of plugin.json."""

    kind: str
    """The kind of the failure."""
    text: str
    """The whole failure text."""
    code: int
    """The plug-in's exit status."""
    cause: str = ""
    """The part of `text` that says why; "" if the traceback says it."""
    of_script: bool = False
    """The toolkit itself ran the plug-in's script, on all hosts, and wrote the text."""


def with_its_own_text(outcome: Outcome, folder: Path) -> Outcome:
    """Return *outcome* with the failure kind and text of sagemaker-training, if the plug-in left them in *folder* and
    its own end is the cause."""
    if outcome.status != "failed" or outcome.cause.process != "script":
        return outcome
    word = _left_in(folder)
    if word is None or word.code != outcome.exit_code:
        return outcome
    cause = msgspec.structs.replace(outcome.cause, kind=word.kind, message=word.cause or outcome.cause.message)
    return msgspec.structs.replace(outcome, cause=cause, plugin_failure_text=word.text)


def with_its_scripts_text(outcome: Outcome, folder: Path) -> Outcome:
    """Return *outcome*, the job's, with the text that this host's run of the plug-in's script left.

    That run knows which rank of which host failed first; the outer `train` knows only which plug-in ended first.
    """
    word = _left_in(folder) if outcome.status == "failed" else None
    if word is None or not word.of_script or word.code != outcome.exit_code:
        return outcome
    return msgspec.structs.replace(outcome, plugin_failure_text=word.text)


def _left_in(folder: Path) -> Word | None:
    try:
        return decode(files.read(folder / NAME), Word, NAME)
    except (OSError, ContractError):
        return None
