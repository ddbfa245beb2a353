"""The platform's own hyperparameters, with typed access: clients write them in several ways."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ContractError
from toolkit.job.documents.input_config import typed
from toolkit.log import Log
from toolkit.settings import MOST

# What a flag may be written as, beside JSON's true and false.
WORDS = {
    **dict.fromkeys(("", "false", "none", "null", "no", "off", "n", "f", "0"), False),
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
}


class TypedParameters:
    """The platform's own hyperparameters, decoded: in *file*, except those whose place *places* gives."""

    def __init__(self, values: dict[str, Any], file: Path, places: Mapping[str, str], log: Log) -> None:
        self._values = values
        self._file = file
        self._places = places
        self._log = log

    def place(self, name: str) -> str:
        """Return the place of the hyperparameter *name*, for errors."""
        return self._places.get(name) or f"{self._file}: $.{json.dumps(name)[1:-1]}"

    def short_place(self, name: str) -> str:
        """Return the same without the folder of *file*, for warnings."""
        return self._places.get(name) or f"{self._file.name}: $.{name}"

    def text(self, name: str) -> str | None:
        """Return the text *name*, None without it.

        Raises:
            ContractError: it is no text.
        """
        return typed(self._values.get(name), str | None, self.place(name))  # type: ignore[arg-type]

    def as_text(self, name: str) -> str:
        """Return the value as text, whatever its type; "" without it."""
        value = self._values.get(name)
        return "" if value is None else str(value)

    def names(self, name: str) -> tuple[str, ...]:
        return typed(self._values[name], tuple[str, ...], self.place(name))

    def count(self, name: str) -> int | None:
        """Return the number *name*, None without it or if it is 0.

        Raises:
            ContractError: it is no whole number, or too large.
        """
        value = self._values.get(name)
        if not value:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise ContractError(
                f"expected a whole number, 1 to {MOST:,}, found {json.dumps(value)[:40]}", where=self.place(name)
            )
        return value

    def is_on(self, name: str) -> bool:
        """Return True if the flag is set. Clients also write it as Python ("False", "None") or in words ("no").

        A value that says neither counts as set, as in sagemaker-training, and is warned of.
        """
        value = self._values.get(name, False)
        if isinstance(value, str):
            value = WORDS.get(value.strip().lower(), value)
        if isinstance(value, dict) and isinstance(value.get("enabled"), bool):
            value = value["enabled"]  # An entry of the SDK's `distribution`, as it stands there.
        if not (value is None or isinstance(value, bool) or value in (0, 1)):
            self._log.warning(
                f"{self.short_place(name)}: expected true or false, found {json.dumps(value)[:60]}, which counts as "
                f"{'true' if value else 'false'}"
            )
        return bool(value)
