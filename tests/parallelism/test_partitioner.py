from bisect import bisect
from itertools import combinations, product

import msgspec
import pytest

from tests.parallelism.shapes import SHAPES, decoder, dense, leaf, over
from toolkit.errors import ContractError
from toolkit.parallelism import cost
from toolkit.parallelism.partitioner import (
    apportion_devices,
    assign_by_tree,
    busiest_cost,
    cut_segments,
    decide,
    find_best_split,
    is_contiguous,
    used_devices,
)
from toolkit.parallelism.tree import Module


def brute_force(tree: Module, devices: int, scale: cost.CostScale) -> float:
    """Return the least cost of the busiest device over all contiguous splits of the modules that hold parameters and
    have none below; what is around them is with its first one, what is tied with what it is tied to."""
    leaves = [
        node.name
        for node in tree.walk()
        if not any(below.parameter_bytes for below in node.children) and node.parameter_bytes
    ]
    numbers = {name: number for number, name in enumerate(leaves)}
    place: dict[str, int] = {}
    for node in tree.walk():
        inside = [below.name for below in node.walk() if below.name in numbers]
        tied = [name for name in node.shares if name in numbers]
        parent = node.name.rpartition(".")[0]
        beside = max(place.values(), default=0) if tree.sequential and not parent else place.get(parent, 0)
        place[node.name] = numbers[(inside or tied or [leaves[beside]])[0]]
    memory, time_s = [0.0] * len(leaves), [0.0] * len(leaves)
    for node in tree.walk():
        alone = cost.exclusive_cost(node)
        memory[place[node.name]] += alone.memory_bytes
        time_s[place[node.name]] += alone.compute_s
    as_chain = cost.find_chain(tree) is not None
    crossing = [
        (place[transfer.caller], place[transfer.callee], transfer.seconds)
        for transfer in cost.list_transfers(tree, as_chain=as_chain)
    ]
    least = float("inf")
    for cuts in combinations(range(1, len(leaves)), devices - 1):
        device = [bisect(cuts, number) for number in range(len(leaves))]
        held, busy = [0.0] * devices, [0.0] * devices
        for number, local in enumerate(device):
            held[local] += memory[number]
            busy[local] += time_s[number]
        for source, other, seconds in crossing:
            if device[source] != device[other]:
                busy[device[source]] += seconds
                busy[device[other]] += seconds
        least = min(least, max(map(scale.cost, held, busy)))
    return least


@pytest.mark.parametrize("name", SHAPES)
def test_the_decision_is_within_5_percent_of_the_best_contiguous_split_by_brute_force(name: str) -> None:
    tree = SHAPES[name]()
    for devices, memory_weight in product((2, 3, 4), (0.8, 0.2)):
        decision = decide(tree, devices, memory_weight, "x")
        _, scale = find_best_split(tree, devices, memory_weight, "")

        own_cost = busiest_cost(tree, decision.assignment, devices, scale)

        assert own_cost <= 1.05 * brute_force(tree, devices, scale), (devices, memory_weight, decision.reason)
        assert used_devices(tree, decision.assignment) == set(range(devices))


def test_contiguous_alone_gives_no_device_modules_on_both_sides_of_anothers() -> None:
    def method(contiguous_alone: bool) -> str:
        decision = decide(SHAPES["gpt2"](), 3, 0.8, "x", contiguous_alone=contiguous_alone)
        assert is_contiguous(SHAPES["gpt2"](), decision.assignment) == contiguous_alone
        return decision.method

    assert [method(False), method(True)] == ["tree", "contiguous"]


def test_equal_input_gives_an_equal_decision() -> None:
    first, other = (decide(SHAPES["gpt2"](), 4, 0.8, "x") for _ in range(2))
    assert first == other


def test_the_tree_method_cuts_children_where_the_costliest_segment_is_cheapest_and_deals_devices_by_quotients() -> None:
    assert cut_segments([4, 1, 1, 1, 5], 2) == [0, 3]
    assert cut_segments([1, 1, 1], 3) == [0, 1, 2]
    assert apportion_devices([6, 3, 1], 4) == [3, 1, 0]
    assert apportion_devices([1, 1], 3) == [2, 1]
    big = over("big", [leaf("big.0", 300, out=1), leaf("big.1", 300, out=1), leaf("big.2", 0, out=1)])
    tree = over("", [leaf("first", 100, out=1), big, leaf("last", 400, out=1)])

    # The segments are first with big (700 weights), and last (400). With a third device, first and big have two, which
    # both go to big (600 / 2 is more than 100); first, without one, is on the device of its parent.
    assert assign_by_tree(tree, 2, 1.0) == {"": 0, "last": 1}
    assert assign_by_tree(tree, 3, 1.0) == {"": 0, "big.1": 1, "last": 2}


def test_modules_that_share_a_parameter_are_on_one_device() -> None:
    tree = SHAPES["translator"]()
    for devices in (2, 3, 4):
        device_of = cost.resolve_devices(tree, decide(tree, devices, 0.8, "x").assignment)
        assert device_of["encoder.embed"] == device_of["decoder.embed"] == device_of["head"]


def test_a_module_without_parameters_runs_with_its_caller_and_in_a_chain_with_the_stage_before_it() -> None:
    nested = over("", [dense("a", 64, 64, 8), leaf("act", 0, out=512), dense("b", 64, 64, 8), leaf("last", 0, out=512)])
    stages = [dense(str(index), 64, 64, 8) if index % 2 == 0 else leaf(str(index), 0, out=512) for index in range(8)]
    chain = over("", stages, sequential=True)

    inside = cost.resolve_devices(nested, decide(nested, 2, 0.5, "x").assignment)
    along = cost.resolve_devices(chain, decide(chain, 2, 0.5, "x").assignment)

    assert inside == {"": 0, "a": 0, "act": 0, "b": 1, "last": 0}
    assert [along[str(index)] for index in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert cost.is_chain(chain, along)


def test_a_chain_goes_on_inside_its_sequential_modules_and_not_inside_others() -> None:
    tree = SHAPES["vgg"]()
    device_of = cost.resolve_devices(tree, decide(tree, 4, 0.8, "x").assignment)
    assert cost.is_chain(tree, device_of) and device_of["s2"] == device_of["s2.0"] < device_of["s2.1"]
    wrapped = over("", [msgspec.structs.replace(tree, name="net", sequential=False)])

    assert cost.find_chain(wrapped) is None
    assert cost.find_chain(over("", [tree])) is not None


def test_of_equal_splits_the_one_with_less_to_transfer_is_taken() -> None:
    # Of five equal stages either side may have three. The output of one stage is a hundred times that of the others.
    for heavy, device in ((2, 1), (1, 0)):
        wide = [leaf(str(index), 1000, into=10, out=1_000_000 if index + 1 == heavy else 10_000) for index in range(5)]
        tree = over("", [msgspec.structs.replace(stage, activation_bytes=0) for stage in wide], sequential=True)

        device_of = cost.resolve_devices(tree, decide(tree, 2, 0.5, "x").assignment)

        assert device_of["2"] != device


def test_the_cuts_name_bytes_and_calls_of_one_forward_pass() -> None:
    forward, back = decide(over("", [dense("a", 64, 64, 8), dense("b", 64, 32, 8)]), 2, 0.8, "x").cuts

    assert (forward.source, forward.target, forward.bytes, forward.calls) == (0, 1, 8 * 64 * 4, 1)
    assert (back.source, back.target, back.bytes, back.calls) == (1, 0, 8 * 32 * 4, 1)


def test_more_partitions_than_modules_with_parameters_are_refused() -> None:
    with pytest.raises(ContractError, match=r"partitions.*at least 3 modules .* found 2. Lower partitions"):
        decide(over("", [dense("a", 8, 8, 1), dense("b", 8, 8, 1)]), 3, 0.8, "x", source="partitions")


def test_a_model_of_hundreds_of_modules_is_decided_and_leaves_no_device_empty() -> None:
    tree = decoder(96, 512, 50_000, 512, tied=True)

    decision = decide(tree, 8, 0.8, "x")

    assert used_devices(tree, decision.assignment) == set(range(8))
