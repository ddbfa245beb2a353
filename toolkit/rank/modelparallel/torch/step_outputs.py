"""A step's arguments as microbatches, and its results as StepOutput."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from toolkit.rank.modelparallel.errors import SMPError
from toolkit.rank.modelparallel.results import joined, rebuilt


class StepOutput:
    """One returned tensor of all microbatches: `outputs` has each one's, in order, as has the StepOutput itself."""

    def __init__(self, outputs: Iterable[Any]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Any:
        """Return the mean over the microbatches."""
        return self.reduce_sum() / len(self.outputs)

    def reduce_sum(self) -> Any:
        """Return the sum over the microbatches."""
        return self.stack().sum(dim=0)

    def concat(self) -> Tensor:
        """Return the values joined along the first axis; values without axes become a vector."""
        return torch.cat([tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in self._tensors("concat")])

    def merge(self) -> Tensor:
        """Return the same as `concat`."""
        return self.concat()

    def stack(self) -> Tensor:
        """Return the values along a new first axis."""
        return torch.stack(self._tensors("stack"))

    def detach(self) -> "StepOutput":
        """Return the values without their graphs."""
        return StepOutput(output.detach() if isinstance(output, Tensor) else output for output in self.outputs)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"StepOutput has no {name}: it holds the value of each microbatch. Join them first, with reduce_mean(), "
            "reduce_sum(), concat() or stack()"
        )

    def __len__(self) -> int:
        return len(self.outputs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.outputs)

    def __getitem__(self, place: Any) -> Any:
        return self.outputs[place]

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"

    def _tensors(self, method: str) -> list[Tensor]:
        for output in self.outputs:
            if not isinstance(output, Tensor):
                raise SMPError(
                    f"expected tensors for StepOutput.{method}, found {type(output).__name__}: read StepOutput.outputs"
                )
        return self.outputs


Slicer = Callable[[Any, int, int, int], Any]


class Splitter:
    """Cuts the arguments of *function* into *count* microbatches."""

    def __init__(
        self, function: Callable[..., Any], count: int, unsplit: Iterable[str], axes: Mapping[str, int]
    ) -> None:
        self._signature = inspect.signature(function)
        self._count = count
        self._whole = frozenset(unsplit)
        self._axes = dict(axes)
        names = list(self._signature.parameters.values())
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names)
        for name in (*self._whole, *self._axes):
            if not takes_any and name not in self._signature.parameters:
                raise SMPError(
                    f"@smp.step: expected the name of an argument of {function.__name__} "
                    f"({', '.join(self._signature.parameters)}), found {name!r}"
                )

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return each microbatch's positional and keyword arguments.

        Raises:
            SMPError: a tensor's axis cannot be divided.
            TypeError: the function does not take these arguments.
        """
        bound = self._signature.bind(*args, **kwargs)
        names = [
            *(name for name in bound.arguments for _ in range(self._positions(name, bound.arguments[name]))),
        ]
        positional = [(names[number] if number < len(names) else "", value) for number, value in enumerate(bound.args)]
        return [
            (
                tuple(self._part(name, value, number) for name, value in positional),
                {name: self._part(name, value, number) for name, value in bound.kwargs.items()},
            )
            for number in range(self._count)
        ]

    def _positions(self, name: str, value: Any) -> int:
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return len(value)
        return 1 if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) else 0

    def _part(self, name: str, value: Any, number: int) -> Any:
        if name in self._whole:
            return value
        return self._slice(value, number, self._axes.get(name, 0), name)

    def _slice(self, value: Any, number: int, axis: int, name: str) -> Any:
        if isinstance(value, Tensor):
            return self._slice_tensor(value, number, axis, name)
        if hasattr(value, "smp_slice"):
            return value.smp_slice(self._count, number, axis)
        return rebuilt(value, lambda element, place: self._slice(element, number, axis, f"{name}{place}"))

    def _slice_tensor(self, tensor: Tensor, number: int, axis: int, name: str) -> Tensor:
        if not tensor.dim():
            return tensor
        if not -tensor.dim() <= axis < tensor.dim():
            raise SMPError(
                f"@smp.step: expected argument {name} to have axis {axis} (input_split_axes), found the shape "
                f"{tuple(tensor.shape)}"
            )
        size = tensor.shape[axis]
        if size % self._count:
            raise SMPError(
                f"@smp.step: expected a batch that {self._count} microbatches divide, found {size} along axis {axis} "
                f"of argument {name}, whose shape is {tuple(tensor.shape)}: change the batch size (DataLoader's "
                "drop_last=True drops the last, smaller one) or the parameter microbatches, or name the argument in "
                "non_split_inputs"
            )
        part = size // self._count
        return tensor.narrow(axis, number * part, part)


def detach_tensors(value: Any) -> Any:
    """Return *value* with its tensors detached."""
    if isinstance(value, Tensor):
        return value.detach()
    return rebuilt(value, lambda element, _: detach_tensors(element))


def merge_outputs(outputs: list[Any]) -> Any:
    """Return the microbatches' results as one value: StepOutputs of tensors, lists of all else (results.joined)."""
    return joined(outputs, lambda value: isinstance(value, Tensor), StepOutput)
