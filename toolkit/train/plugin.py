"""Reads the failure text that a framework plug-in wrote itself (standalone/plugin.py); it replaces `train`'s own."""

from pathlib import Path

import msgspec

from toolkit.errors import ContractError
from toolkit.job.outcome import Outcome
from toolkit.records import Record, decode

NAME = "plugin.json"


class Word(Record, frozen=True, kw_only=True):
    """plugin.json. `text`: the whole failure text; `cause`: what of it says why, "" where the traceback does."""

    kind: str
    text: str
    code: int
    cause: str = ""


def with_its_own_text(outcome: Outcome, folder: Path) -> Outcome:
    """Return *outcome* with the kind and text of sagemaker-training's, where the plug-in left some in *folder* and its
    own end is the cause."""
    if outcome.status != "failed" or outcome.process != "script":
        return outcome
    try:
        word = decode((folder / NAME).read_bytes(), Word, NAME)
    except (OSError, ContractError):
        return outcome
    if word.code != outcome.exit_code:
        return outcome
    return msgspec.structs.replace(outcome, kind=word.kind, text=word.text, cause=word.cause or outcome.cause)
