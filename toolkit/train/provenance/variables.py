"""Variables and hyperparameters in a manifest: names, and values only where they are no secrets.

The digest of a value can be guessed: whoever has it tries values until one fits, and a password of few letters is soon
found. So a value that is a secret by its name or by its shape leaves the word "secret" alone, and no digest. A digest
covers the name, too: equal values under two names do not show, and no table of digests of common values fits.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from toolkit.job.manifest import SECRET
from toolkit.masking.names import is_secret, words
from toolkit.paths import to_key
from toolkit.records import encode

# A longer value of a hyperparameter leaves its digest alone.
VALUE_CHARACTERS = 200
# Whoever knows the address of a webhook can post to it; most have no form that shows it.
SECRET_SETTINGS = frozenset(("TOOLKIT_NOTIFY",))
SHORT_CHARACTERS = 8


def digest_variables(environ: Mapping[str, str], mask: Callable[[str], str]) -> dict[str, str]:
    """Return the digest of each variable of *environ*, sorted by name. *mask* masks secrets in a text."""
    return {to_key(name): _digest(name, value, mask) for name, value in sorted(environ.items())}


def show_hyperparameters(hyperparameters: Mapping[str, Any], mask: Callable[[str], str]) -> dict[str, str]:
    """Return each of *hyperparameters* as JSON, sorted by name."""
    return {name: _show(name, value, mask) for name, value in sorted(hyperparameters.items())}


def find_seeds(hyperparameters: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of *hyperparameters*, as `show_hyperparameters` has them, and of *environ* that set a seed."""
    numbers = {name: value for name, value in environ.items() if re.fullmatch(r"[0-9]{1,20}|random", value)}
    return {name: value for name, value in sorted({**numbers, **hyperparameters}.items()) if _is_seed(name)}


def holds_secret(name: str, value: Any, mask: Callable[[str], str]) -> bool:
    """True if *value*, under *name*, is a secret or holds one."""
    text = f"{name}={value if isinstance(value, str) else encode(value).decode()}"
    return _is_named_secret(name, value) or mask(text) != text


def _is_named_secret(name: str, value: Any) -> bool:
    return name in SECRET_SETTINGS or is_secret(name, value)


def _is_seed(name: str) -> bool:
    return any(word in ("seed", "seeds", "hashseed", "pythonhashseed") for word in words(name))


def _digest(name: str, value: str, mask: Callable[[str], str]) -> str:
    if _is_named_secret(name, value) or (len(value) >= SHORT_CHARACTERS and mask(value) != value):
        return SECRET
    return sha256(f"{name}={value}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _show(name: str, value: Any, mask: Callable[[str], str]) -> str:
    if holds_secret(name, value, mask):
        return SECRET
    text = encode(value).decode()
    return text if len(text) <= VALUE_CHARACTERS else f"sha256:{sha256(text.encode()).hexdigest()[:16]}"
