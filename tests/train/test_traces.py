"""TOOLKIT_PROFILE without anything that could be traced."""

import pytest

from tests.train.base import Base


@pytest.mark.parametrize("profile", ["", "steps 1-5"])
def test_a_job_without_a_framework_says_that_nothing_was_traced(base: Base, profile: str) -> None:
    base.program("print('trained')")

    done = base.train(TOOLKIT_PROFILE=profile) if profile else base.train()

    assert done.status == 0, done
    message = (
        f"TOOLKIT_PROFILE={profile!r}: no rank of this host has written a trace. The script imported neither torch nor"
    )
    assert done.log.count(message) == bool(profile)
