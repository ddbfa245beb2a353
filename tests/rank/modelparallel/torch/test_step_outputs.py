"""A step's arguments as microbatches, and its results."""

import dataclasses
from collections import UserDict
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Batch:
    ids: Any
    name: str


class Ragged:
    """A user's class that splits itself."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def smp_slice(self, num_mb: int, mb: int, axis: int) -> "Ragged":
        return Ragged(self.rows[mb::num_mb])


def takes(inputs: Any, labels: Any = None, *more: Any, scale: Any = None, **options: Any) -> None:
    """A step function's signature."""


def split(count: int, *args: Any, unsplit: Any = (), axes: Any = None, function: Any = takes, **kwargs: Any) -> Any:
    from toolkit.rank.modelparallel.torch.step_outputs import Splitter

    return Splitter(function, count, unsplit, axes or {}).split(args, kwargs)


def test_tensors_are_split_along_axis_0_at_any_depth_and_all_else_is_whole() -> None:
    x = torch.arange(8).reshape(4, 2)
    value = {"batch": Batch(x, "b"), "pair": Pair([x], "text"), "user": UserDict(x=x), "scalar": torch.tensor(3)}

    first, second = split(2, value, Ragged([1, 2, 3, 4]), x, "more", scale=x, other=(x,))

    (inputs, labels, tensor, text), named = second
    assert inputs["batch"] == Batch(inputs["batch"].ids, "b")
    for part in (inputs["batch"].ids, inputs["pair"].left[0], inputs["user"]["x"], tensor, named["scale"]):
        assert torch.equal(part, x[2:])
    assert torch.equal(named["other"][0], x[2:])
    assert (inputs["scalar"].item(), inputs["pair"].right, text) == (3, "text", "more")
    assert labels.rows == [2, 4]
    assert torch.equal(first[0][2], x[:2])


def test_axes_and_whole_arguments_are_given_by_name() -> None:
    x = torch.arange(8).reshape(2, 4)

    (_, second) = split(2, x, x, scale=x, unsplit=("labels",), axes={"inputs": 1, "scale": -1})

    (inputs, labels), named = second
    assert torch.equal(inputs, x[:, 2:])
    assert torch.equal(named["scale"], x[:, 2:])
    assert torch.equal(labels, x)


def test_a_batch_that_the_microbatches_do_not_divide_is_an_error_with_names_and_sizes() -> None:
    from toolkit.rank.modelparallel.errors import SMPError

    with pytest.raises(SMPError, match=r"4 microbatches divide, found 10 along axis 0 of argument labels, .*\(10, 3\)"):
        split(4, torch.zeros(8), torch.zeros(10, 3))
    with pytest.raises(SMPError, match=r"argument inputs\['x'\] to have axis 2"):
        split(2, {"x": torch.zeros(4, 4)}, axes={"inputs": 2})
    with pytest.raises(SMPError, match=r"name of an argument of one \(x\), found 'y'"):
        split(2, torch.zeros(4), function=lambda_named_one(), unsplit=("y",))
    with pytest.raises(TypeError, match="missing a required argument"):
        split(2)


def lambda_named_one() -> Any:
    def one(x: Any) -> None:
        """A function with one argument."""

    return one


def test_results_of_the_microbatches_become_step_outputs_of_tensors_and_lists_of_all_else() -> None:
    from toolkit.rank.modelparallel.torch.step_outputs import merge_outputs

    results = [
        {
            "loss": torch.tensor(float(n)),
            "pair": Pair(torch.full((2, 3), n), n),
            "none": None,
            "rows": ["a"] * n,
            "mixed": [torch.tensor(n), n],
            "deep": {"text": (f"{n}", Batch([torch.tensor(n)], "b"))},
            "other": torch.tensor(n) if n == 1 else None,
        }
        for n in (1, 3)
    ]

    outputs = merge_outputs(results)

    loss = outputs["loss"]
    assert (loss.reduce_mean().item(), loss.reduce_sum().item(), sum(loss).item(), loss[-1].item()) == (2, 4, 4, 3)
    assert (loss.concat().tolist(), loss.merge().tolist(), len(loss), [x.item() for x in loss]) == (
        [1, 3],
        [1, 3],
        2,
        [1, 3],
    )
    assert outputs["pair"].left.concat().shape == (4, 3)
    assert outputs["pair"].left.stack().shape == (2, 2, 3)
    assert outputs["pair"].right == [1, 3]
    assert outputs["none"] == [None, None]
    assert outputs["rows"] == [["a"], ["a"] * 3]
    assert (outputs["mixed"][0].concat().tolist(), outputs["mixed"][1]) == ([1, 3], [1, 3])
    text, batch = outputs["deep"]["text"]
    assert (text, batch.ids[0].reduce_sum().item(), batch.name) == (["1", "3"], 4, ["b", "b"])
    assert outputs["other"][1] is None and outputs["other"][0].item() == 1


@pytest.mark.parametrize(
    ("results", "outputs"),
    [
        ([1.5, 2.5], [1.5, 2.5]),
        ([(1, "a"), (2, "b")], ([1, 2], ["a", "b"])),
        ([None, None], [None, None]),
        ([["x"], ["y", "z"]], [["x"], ["y", "z"]]),
        ([{"a": 1}, {"a": 2}], {"a": [1, 2]}),
        ([{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        ([(1, 2), (3,)], [(1, 2), (3,)]),
        ([(), ()], [(), ()]),
        ([{1}, {2}], [{1}, {2}]),
    ],
)
def test_results_without_tensors_are_lists_of_one_value_for_each_microbatch(results: list[Any], outputs: Any) -> None:
    from toolkit.rank.modelparallel.torch.step_outputs import merge_outputs

    assert merge_outputs(results) == outputs


def test_step_outputs_without_tensors_say_so() -> None:
    from toolkit.rank.modelparallel.errors import SMPError
    from toolkit.rank.modelparallel.torch.step_outputs import StepOutput

    with pytest.raises(SMPError, match=r"tensors for StepOutput.concat, found str: read StepOutput.outputs"):
        StepOutput(["a"]).concat()
    with pytest.raises(AttributeError, match=r"StepOutput has no item: .* reduce_mean\(\)"):
        StepOutput([torch.ones(1)]).item()


def test_detached_results_have_no_graph() -> None:
    from toolkit.rank.modelparallel.torch.step_outputs import StepOutput, detach_tensors

    x = torch.ones(2, requires_grad=True) * 2

    assert not detach_tensors({"a": [x]})["a"][0].requires_grad
    assert not StepOutput([x]).detach().outputs[0].requires_grad
