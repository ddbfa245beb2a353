"""Joins the return values of a step's microbatches into one. Pure: the framework says which values are tensors."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

IsTensor = Callable[[Any], bool]


def rebuilt(value: Any, change: Callable[[Any, str], Any]) -> Any:
    """Return *value* with each element replaced by *change*(element, its place as text); *value* itself if it is no
    container.

    Containers: lists, tuples and named tuples, dictionaries and other mappings, dataclasses.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(element, f".{name}") for name, element in zip(value._fields, value, strict=True)))
    if isinstance(value, list | tuple):
        return type(value)(change(element, f"[{number}]") for number, element in enumerate(value))
    if isinstance(value, Mapping):
        changed = {key: change(element, f"[{key!r}]") for key, element in value.items()}
        if type(value) is dict:
            return changed
        if dataclasses.is_dataclass(value):  # transformers' ModelOutput.
            return type(value)(**changed)
        return _mapping_like(value, changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: change(element, f".{name}") for name, element in fields.items()})
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

    *of_tensors* joins tensors; other values become a list with one element per microbatch. Tuples, mappings,
    dataclasses and lists with a tensor at any depth are joined element by element. Other lists are values: they may
    have another length in each microbatch. *keeps_none*: if all microbatches return None, so does this.
    """
    if keeps_none and all(output is None for output in outputs):
        return None
    if all(is_tensor(output) for output in outputs):
        return of_tensors(outputs)
    parts = [_elements_by_place(output, is_tensor) for output in outputs]
    first = parts[0]
    if first is None or any(
        part is None or part.keys() != first.keys() or type(output) is not type(outputs[0])
        for part, output in zip(parts, outputs, strict=True)
    ):
        return outputs
    return rebuilt(
        outputs[0],
        lambda _, place: joined(
            [part[place] for part in parts if part is not None], is_tensor, of_tensors, keeps_none=keeps_none
        ),
    )


def _elements_by_place(value: Any, is_tensor: IsTensor) -> dict[str, Any] | None:
    """Return the elements of *value* by their place; None if it is no container, or a list without tensors."""
    by_place: dict[str, Any] = {}

    def note(element: Any, place: str) -> Any:
        by_place[place] = element
        return element

    if isinstance(value, list) and not _has_tensor(value, is_tensor):
        return None
    return by_place if rebuilt(value, note) is not value else None


def _has_tensor(value: Any, is_tensor: IsTensor) -> bool:
    if is_tensor(value):
        return True
    has_tensor = False

    def check(element: Any, _: str) -> Any:
        nonlocal has_tensor
        has_tensor = has_tensor or _has_tensor(element, is_tensor)
        return element

    rebuilt(value, check)
    return has_tensor
