"""What crosses between partitions, and the order in which ranks work on microbatches."""

from collections.abc import Sequence
from typing import Any

import pytest

from toolkit.rank.modelparallel.tf.plan import Call, Plan, Source, make
from toolkit.rank.modelparallel.tf.schedule import Item, Pass, in_order, order

FORWARD, BACKWARD = Pass(0), Pass(0, 0)


def chain(devices: int) -> Plan:
    calls = [Call(f"layer{number}", number, (Source(number - 1, 0),) if number else ()) for number in range(devices)]
    return make(calls, [(Source(devices - 1, 0),)], devices)


def branches() -> Plan:
    """Two branches on devices 1 and 2, the end again on 0, and a layer on 3 that nothing depends on."""
    calls = [
        Call("stem", 0, ()),
        Call("left", 1, (Source(0, 0),)),
        Call("right", 2, (Source(0, 0),)),
        Call("dead", 3, (Source(2, 0),)),
        Call("end", 0, (Source(1, 0), Source(2, 0), Source(0, 0))),
    ]
    return make(calls, [(Source(4, 0),)], 4)


def work(items: Sequence[Item]) -> str:
    """Return what a device does as text: F0 B1 ... at each first event of a pass that is no waiting."""
    found: list[str] = []
    for item in items:
        word = f"{'B' if item.its.is_backward else 'F'}{item.microbatch}"
        if item.event.kind == "send" and (not found or found[-1] != word):
            found.append(word)
    return " ".join(found)


def followed(orders: list[list[Item]]) -> int:
    """Do *orders* as ranks would, each in its own order, a receive when its send is done; return how many were done."""
    sent: set[Any] = set()
    rest = [list(items) for items in orders]
    done = 0
    progress = True
    while progress:
        progress = False
        for items in rest:
            while items:
                item = items[0]
                key = (item.microbatch, item.its, item.event.transfer)
                if item.event.kind == "receive" and key not in sent:
                    break
                if item.event.kind == "send":
                    sent.add(key)
                items.pop(0)
                done, progress = done + 1, True
    return done


def test_a_layer_output_crosses_once_to_each_device_that_needs_it_and_its_gradient_comes_back() -> None:
    plan = branches()

    layers = [(its.origin, its.target, its.source) for its in plan.transfers if its.source is not None]
    assert layers == [
        (0, 1, Source(0, 0)),
        (0, 2, Source(0, 0)),
        (1, 0, Source(1, 0)),
        (2, 0, Source(2, 0)),
    ]
    assert all(its.has_gradient == (its.source is not None) for its in plan.transfers)
    # The model's output goes to all others, without a gradient.
    assert [(its.origin, its.target) for its in plan.transfers if its.source is None] == [(0, 1), (0, 2), (0, 3)]
    kinds = [event.kind for event in plan.backward[0]]
    assert kinds == ["turn", "send", "send", "receive", "receive", "end"]


def test_no_gradient_comes_back_for_whole_numbers() -> None:
    calls = [Call("ids", 0, (), (False,)), Call("table", 1, (Source(0, 0),))]

    plan = make(calls, [(Source(1, 0),)], 2)

    assert [event.kind for event in plan.backward[0]] == ["turn", "end"]
    assert [event.kind for event in plan.backward[1]] == ["turn", "end"]


@pytest.mark.parametrize("microbatches", [1, 2, 3, 16])
@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("plan", [chain(2), chain(4), branches()], ids=["chain of 2", "chain of 4", "branches"])
def test_ranks_that_follow_their_orders_never_wait_for_each_other(plan: Plan, pipeline: str, microbatches: int) -> None:
    for active in (1, 3, 16):
        orders = order([plan, plan], [FORWARD, Pass(1), Pass(1, 0), BACKWARD], microbatches, pipeline, active)

        each = 2 * (len(plan.forward[0]) + len(plan.backward[0]))
        assert len(orders[0]) == microbatches * each
        assert followed(orders) == sum(map(len, orders))


def test_simple_does_all_forward_passes_first_and_interleaved_turns_to_backward_as_soon_as_it_can() -> None:
    slow_first = make([Call("a", 0, (), cost=9.0), Call("b", 1, (Source(0, 0),))], [(Source(1, 0),)], 2)
    for plan in (chain(2), slow_first):
        simple = order([plan], [FORWARD, BACKWARD], 4, "simple", 4)
        interleaved = order([plan], [FORWARD, BACKWARD], 4, "interleaved", 4)

        assert work(simple[1]) == "F0 F1 F2 F3 B0 B1 B2 B3"
        assert work(interleaved[1]) == "F0 B0 F1 B1 F2 B2 F3 B3"


@pytest.mark.parametrize("active", [1, 2, 5])
def test_no_more_microbatches_than_asked_for_are_in_flight(active: int) -> None:
    orders = order([chain(3)], [FORWARD, BACKWARD], 8, "interleaved", active)

    for items in orders:
        open_ones: set[int] = set()
        most = 0
        for item in items:
            open_ones.add(item.microbatch)
            most = max(most, len(open_ones))
            if item.its.is_backward and item.event.kind == "end":
                open_ones.remove(item.microbatch)
        assert most == active if items is orders[0] else most <= active


def test_backward_passes_of_one_loss_over_two_calls_have_one_order_on_all_ranks() -> None:
    one = [Pass(0), Pass(1), Pass(0, 0), Pass(1, 0)]
    other = [Pass(0), Pass(1), Pass(1, 0), Pass(0, 0)]

    assert in_order(one) == in_order(other) == other
