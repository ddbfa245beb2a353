"""Reads the failure text that a framework plug-in wrote itself (standalone/plugin.py). It replaces `train`'s own."""

from pathlib import Path

import msgspec

from toolkit.errors import ContractError
from toolkit.job.outcome import Outcome
from toolkit.records import Record, decode

NAME = "plugin.json"


class Word(Record, frozen=True, kw_only=True):
    """plugin.json. `text`: the whole failure text; `cause`: its part that says why, "" if the traceback says it."""

    kind: str
    text: str
    code: int
    cause: str = ""


def with_its_own_text(outcome: Outcome, folder: Path) -> Outcome:
    """Return *outcome* with the failure kind and text of sagemaker-training, if the plug-in left them in *folder* and
    its own end is the cause."""
    if outcome.status != "failed" or outcome.cause.process != "script":
        return outcome
    try:
        word = decode((folder / NAME).read_bytes(), Word, NAME)
    except (OSError, ContractError):
        return outcome
    if word.code != outcome.exit_code:
        return outcome
    cause = msgspec.structs.replace(outcome.cause, kind=word.kind, text=word.cause or outcome.cause.text)
    return msgspec.structs.replace(outcome, cause=cause, text=word.text)
