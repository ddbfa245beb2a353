"""Dictionaries as arguments and as environment variables, and objects that are dictionaries of their properties."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from toolkit.job.arguments import arguments
from toolkit.job.variables import text


class SplitResultSpec(NamedTuple):
    """The two parts of a dictionary."""

    included: dict[str, Any]
    excluded: dict[str, Any]


def to_env_vars(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Return *mapping* as variables: SM_ and the name in capitals; None as "", bytes as Latin-1, other values that are
    no text as compact JSON."""
    return {f"SM_{str(name).upper()}" if name else "": text(_plain(value)) for name, value in mapping.items()}


def to_cmd_args(mapping: Mapping[str, Any]) -> list[str]:
    """Return *mapping* as arguments, sorted by name: `--name value`, `-n value`, each value one argument."""
    return list(arguments({_plain(name): _plain(value) for name, value in mapping.items()}, "sagemaker"))


def split_by_criteria(
    dictionary: Mapping[str, Any], keys: Iterable[str] | None = None, prefix: str | None = None
) -> SplitResultSpec:
    """Return the part of *dictionary* whose names are among *keys* or begin with *prefix*, and the rest."""
    names = set(keys or ())
    taken = {name for name in dictionary if name in names or (prefix and name.startswith(prefix))}
    return SplitResultSpec(
        included={name: value for name, value in dictionary.items() if name in taken},
        excluded={name: value for name, value in dictionary.items() if name not in taken},
    )


class MappingMixin(Mapping[str, Any]):
    """Makes an object a dictionary of its properties."""

    def properties(self) -> list[str]:
        """Return the names of the properties, sorted."""
        return [name for name in dir(type(self)) if self._is_property(name)]

    def _is_property(self, name: str) -> bool:
        return isinstance(getattr(type(self), name, None), property)

    def __getitem__(self, name: str) -> Any:
        if not self._is_property(name):
            raise KeyError(f"expected a property of {type(self).__name__}, found {name!r}")
        return getattr(self, name)

    def __len__(self) -> int:
        return len(self.properties())

    def __iter__(self) -> Iterator[str]:
        return iter(self.properties())

    def __str__(self) -> str:
        return str(dict(self))


def _plain(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value
