"""The tensors that cross between partitions, and the order in which ranks work on microbatches."""

from collections.abc import Sequence
from typing import Any

import pytest

from toolkit.rank.modelparallel.tf.plan import CallPlan, LayerOutput, PlannedCall, make_plan
from toolkit.rank.modelparallel.tf.schedule import Pass, ScheduledEvent, put_in_order, schedule_step

FORWARD, BACKWARD = Pass(0), Pass(0, 0)


def chain(devices: int) -> CallPlan:
    calls = [
        PlannedCall(f"layer{number}", number, (LayerOutput(number - 1, 0),) if number else ())
        for number in range(devices)
    ]
    return make_plan(calls, [(LayerOutput(devices - 1, 0),)], devices)


def branches() -> CallPlan:
    """Two branches on devices 1 and 2, the end again on 0, and a layer on 3 that nothing depends on."""
    calls = [
        PlannedCall("stem", 0, ()),
        PlannedCall("left", 1, (LayerOutput(0, 0),)),
        PlannedCall("right", 2, (LayerOutput(0, 0),)),
        PlannedCall("dead", 3, (LayerOutput(2, 0),)),
        PlannedCall("end", 0, (LayerOutput(1, 0), LayerOutput(2, 0), LayerOutput(0, 0))),
    ]
    return make_plan(calls, [(LayerOutput(4, 0),)], 4)


def work(items: Sequence[ScheduledEvent]) -> str:
    """Return what a device does as text: F0 B1 ... at each first event of a pass that is no waiting."""
    found: list[str] = []
    for item in items:
        word = f"{'B' if item.model_pass.is_backward else 'F'}{item.microbatch}"
        if item.event.kind == "send" and (not found or found[-1] != word):
            found.append(word)
    return " ".join(found)


def followed(orders: list[list[ScheduledEvent]]) -> int:
    """Do *orders* as ranks would, each in its own order, a receive when its send is done; return the number done."""
    sent: set[Any] = set()
    rest = [list(items) for items in orders]
    done = 0
    progress = True
    while progress:
        progress = False
        for items in rest:
            while items:
                item = items[0]
                key = (item.microbatch, item.model_pass, item.event.transfer)
                if item.event.kind == "receive" and key not in sent:
                    break
                if item.event.kind == "send":
                    sent.add(key)
                items.pop(0)
                done, progress = done + 1, True
    return done


def test_a_layer_output_crosses_once_to_each_device_that_needs_it_and_its_gradient_comes_back() -> None:
    plan = branches()

    layers = [
        (transfer.origin, transfer.target, transfer.source)
        for transfer in plan.transfers
        if transfer.source is not None
    ]
    assert layers == [
        (0, 1, LayerOutput(0, 0)),
        (0, 2, LayerOutput(0, 0)),
        (1, 0, LayerOutput(1, 0)),
        (2, 0, LayerOutput(2, 0)),
    ]
    assert all(transfer.has_gradient == (transfer.source is not None) for transfer in plan.transfers)
    # The model's output goes to all others, without a gradient.
    assert [(transfer.origin, transfer.target) for transfer in plan.transfers if transfer.source is None] == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]
    kinds = [event.kind for event in plan.backward[0]]
    assert kinds == ["turn", "send", "send", "receive", "receive", "end"]


def test_no_gradient_comes_back_for_whole_numbers() -> None:
    calls = [PlannedCall("ids", 0, (), (False,)), PlannedCall("table", 1, (LayerOutput(0, 0),))]

    plan = make_plan(calls, [(LayerOutput(1, 0),)], 2)

    assert [event.kind for event in plan.backward[0]] == ["turn", "end"]
    assert [event.kind for event in plan.backward[1]] == ["turn", "end"]


@pytest.mark.parametrize("microbatches", [1, 2, 3, 16])
@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("plan", [chain(2), chain(4), branches()], ids=["chain of 2", "chain of 4", "branches"])
def test_ranks_that_follow_their_orders_never_wait_for_each_other(
    plan: CallPlan, pipeline: str, microbatches: int
) -> None:
    for active in (1, 3, 16):
        orders = schedule_step([plan, plan], [FORWARD, Pass(1), Pass(1, 0), BACKWARD], microbatches, pipeline, active)

        each = 2 * (len(plan.forward[0]) + len(plan.backward[0]))
        assert len(orders[0]) == microbatches * each
        assert followed(orders) == sum(map(len, orders))


def test_simple_does_all_forward_passes_first_and_interleaved_turns_to_backward_as_soon_as_it_can() -> None:
    slow_first = make_plan(
        [PlannedCall("a", 0, (), cost=9.0), PlannedCall("b", 1, (LayerOutput(0, 0),))], [(LayerOutput(1, 0),)], 2
    )
    for plan in (chain(2), slow_first):
        simple = schedule_step([plan], [FORWARD, BACKWARD], 4, "simple", 4)
        interleaved = schedule_step([plan], [FORWARD, BACKWARD], 4, "interleaved", 4)

        assert work(simple[1]) == "F0 F1 F2 F3 B0 B1 B2 B3"
        assert work(interleaved[1]) == "F0 B0 F1 B1 F2 B2 F3 B3"


@pytest.mark.parametrize("active", [1, 2, 5])
def test_no_more_microbatches_than_asked_for_are_in_flight(active: int) -> None:
    orders = schedule_step([chain(3)], [FORWARD, BACKWARD], 8, "interleaved", active)

    for items in orders:
        open_ones: set[int] = set()
        most = 0
        for item in items:
            open_ones.add(item.microbatch)
            most = max(most, len(open_ones))
            if item.model_pass.is_backward and item.event.kind == "end":
                open_ones.remove(item.microbatch)
        assert most == active if items is orders[0] else most <= active


def test_backward_passes_of_one_loss_over_two_calls_have_one_order_on_all_ranks() -> None:
    one = [Pass(0), Pass(1), Pass(0, 0), Pass(1, 0)]
    other = [Pass(0), Pass(1), Pass(1, 0), Pass(0, 0)]

    assert put_in_order(one) == put_in_order(other) == other
