"""What the microbatches of a step returned, as one value. Pure: what a tensor is, a framework says."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

IsTensor = Callable[[Any], bool]


def rebuilt(value: Any, change: Callable[[Any, str], Any]) -> Any:
    """Return *value* with *change* of (each element, its place as text), if it is a container, else *value* itself.

    Containers: lists, tuples and named tuples, dictionaries and other mappings, dataclasses.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(each, f".{name}") for name, each in zip(value._fields, value, strict=True)))
    if isinstance(value, list | tuple):
        return type(value)(change(each, f"[{number}]") for number, each in enumerate(value))
    if isinstance(value, Mapping):
        changed = {key: change(each, f"[{key!r}]") for key, each in value.items()}
        if type(value) is dict:
            return changed
        if dataclasses.is_dataclass(value):  # transformers' ModelOutput.
            return type(value)(**changed)
        return _mapping_like(value, changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: change(each, f".{name}") for name, each in own.items()})
    return value


def _mapping_like(value: Mapping[Any, Any], changed: dict[Any, Any]) -> Any:
    try:
        return type(value)(changed)  # type: ignore[call-arg]
    except TypeError:
        return changed


def joined(
    outputs: list[Any], is_tensor: IsTensor, of_tensors: Callable[[list[Any]], Any], keeps_none: bool = False
) -> Any:
    """Return *outputs*, one of each microbatch, as one value.

    Tensors become what *of_tensors* makes of them all, every other value a list of one for each microbatch. Tuples,
    mappings and dataclasses stay what they are, with such values in them; so do lists with a tensor at any depth. Other
    lists are values, which may have another length in each microbatch. *keeps_none*: None of all microbatches is None.
    """
    if keeps_none and all(each is None for each in outputs):
        return None
    if all(is_tensor(each) for each in outputs):
        return of_tensors(outputs)
    parts = [_elements(each, is_tensor) for each in outputs]
    first = parts[0]
    if first is None or any(
        part is None or part.keys() != first.keys() or type(each) is not type(outputs[0])
        for part, each in zip(parts, outputs, strict=True)
    ):
        return outputs
    return rebuilt(
        outputs[0],
        lambda _, place: joined(
            [part[place] for part in parts if part is not None], is_tensor, of_tensors, keeps_none=keeps_none
        ),
    )


def _elements(value: Any, is_tensor: IsTensor) -> dict[str, Any] | None:
    """Return the elements of *value* by their place, None: it is no container, or a list of other values."""
    found: dict[str, Any] = {}

    def note(each: Any, place: str) -> Any:
        found[place] = each
        return each

    if isinstance(value, list) and not _has_tensor(value, is_tensor):
        return None
    return found if rebuilt(value, note) is not value else None


def _has_tensor(value: Any, is_tensor: IsTensor) -> bool:
    if is_tensor(value):
        return True
    has = False

    def look(each: Any, _: str) -> Any:
        nonlocal has
        has = has or _has_tensor(each, is_tensor)
        return each

    rebuilt(value, look)
    return has
