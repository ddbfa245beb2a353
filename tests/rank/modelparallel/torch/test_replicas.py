"""Averaging gradients over the replicas of a model."""

import pytest

from tests.started import PROGRAMS, ended, ranks

pytestmark = pytest.mark.torch


def test_gradients_are_the_mean_of_all_replicas_however_they_are_reduced() -> None:
    streams = ended(ranks(PROGRAMS / "smp_replicas.py", environ={}))

    assert [out for out, _ in streams] == ["all equal\n"] * 2
