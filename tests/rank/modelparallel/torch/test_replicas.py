"""Averaging gradients over the replicas of a model."""

import json
from typing import Any

import pytest

from tests.started import PROGRAMS, ended, ranks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def replicas() -> list[dict[str, Any]]:
    """The measurements of two ranks of smp_replicas.py."""
    return [json.loads(stdout) for stdout, _ in ended(ranks(PROGRAMS / "smp_replicas.py", environ={}))]


@pytest.mark.parametrize(
    "case", [*(f"step {step}" for step in range(6)), "more microbatches", "two steps", "views 200", "views 210", "fp16"]
)
def test_gradients_are_the_mean_of_all_replicas_however_they_are_reduced(
    replicas: list[dict[str, Any]], case: str
) -> None:
    """Of steps in which one of the replicas, or none, uses a layer; with later gradients than in the step before."""
    for report in replicas:
        error = report["errors"][case]
        assert error is not None, "other parameters have gradients"
        assert error <= 1


def test_all_replicas_begin_with_the_first_ones_values(replicas: list[dict[str, Any]]) -> None:
    assert [report["keeps its values"] for report in replicas] == [True, False]


def test_from_the_second_step_on_buckets_are_reduced_within_the_backward_pass(replicas: list[dict[str, Any]]) -> None:
    for report in replicas:
        assert report["buckets"] > 2
        assert report["overlapped"][0] == 0 < report["overlapped"][1]


def test_buckets_are_reduced_after_the_backward_pass_if_the_script_says_so(replicas: list[dict[str, Any]]) -> None:
    assert [report["overlapped at the end of the step"] for report in replicas] == [0, 0]


def test_gradients_may_be_views_of_one_bucket(replicas: list[dict[str, Any]]) -> None:
    assert [report["storages"] for report in replicas] == [[1, 1]] * 2


def test_a_hook_of_the_script_reduces_in_place_of_the_library(replicas: list[dict[str, Any]]) -> None:
    """In fp16 here."""
    assert [report["rounded"] for report in replicas] == [True, True]
