"""Pure: the words behind `--` of `toolkit run SCRIPT -- --epochs 3`, which are the script's own arguments.

A job has no arguments but its hyperparameters, so each option becomes one. With the argument style `flags` the script
gets them back as they were typed: --amp without a value, --layers 64 32 as several words.
"""

import re
from collections.abc import Sequence
from typing import Any

from toolkit.errors import ContractError

STYLE = {"TOOLKIT_ARGUMENT_STYLE": "flags"}
_NUMBER = re.compile(r"-\.?\d.*")  # -5 and -.5 are values.


def hyperparameters(words: Sequence[str], source: str, *, as_typed: bool = True) -> dict[str, Any]:
    """Return the hyperparameters that the options *words* are: text, several texts, or True for one without a value.
    *as_typed*: refuse what the style `flags` would pass with another number of dashes; the job has this style.

    Raises:
        ContractError: a word belongs to no option, an option stands there twice, or the script would get it with
            another number of dashes: SageMaker's arguments are -x of one letter, and --name of several.
    """
    values_by_name: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-") and word.lstrip("-").partition("=")[0] and not _NUMBER.fullmatch(word):
            name, equals, value = word.lstrip("-").partition("=")
            option = f"-{name}" if len(name) == 1 else f"--{name}"
            if as_typed and (typed := word.partition("=")[0]) != option:
                hint = "A job passes hyperparameters alone: one of one letter as -x, others as --name."
                message = f"expected {option}, found {typed}, which the script would get as {option}"
                raise ContractError(message, where=source, hint=hint)
            if name in values_by_name:
                hint = f"Give its values together: {option} A B."
                raise ContractError(f"expected each option once, found {option} again", where=source, hint=hint)
            values_by_name[name] = [value] if equals else []
        elif not name:
            hint = "A job passes hyperparameters alone, each as --NAME VALUE; give a file as a channel."
            raise ContractError(f"expected an option of the script, found {word!r}", where=source, hint=hint)
        else:
            values_by_name[name].append(word)
    return {
        name: True if not values else values[0] if len(values) == 1 else values
        for name, values in values_by_name.items()
    }
