"""Whose `train` is started where an image says `train`: two packages may install a program of that name."""

import re
from pathlib import Path

from toolkit.patterns import lazy
from toolkit.train.probe.ask import find_program

OURS = b"toolkit.cli."
READ_BYTES = 8192
IMPORTED = lazy(rb"^\s*(?:from|import)\s+(?!sys\b|re\b|os\b)(\w+)", re.M)


def other_train(path: str) -> str:
    """Return what the `train` on *path* (as PATH) is where it is not the toolkit's, as "/usr/bin/train, which starts
    sagemaker_training"; "" where it is, there is none, or it is no console script of Python's: then it cannot be told.

    sagemaker-training installs one, too: of both packages in one environment the one that was installed last wins.
    """
    program = find_program("train", path)
    if program is None:
        return ""
    try:
        with Path(program).open("rb") as file:
            text = file.read(READ_BYTES)
    except OSError:
        return ""
    imported = IMPORTED.search(text) if text.startswith(b"#!") and OURS not in text else None
    return f"{program}, which starts {imported[1].decode()}" if imported else ""
