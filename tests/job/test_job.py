"""A job describes itself."""

import msgspec
import pytest

from tests.train.launchers.jobs import job_of
from toolkit.settings import Settings


@pytest.mark.parametrize(
    ("stop_within_s", "grace_s"), [(120.0, 110.0), (30.0, 20.0), (15.0, 10.0), (10.0, 6.7), (3.0, 2.0), (0.0, 1.0)]
)
def test_the_grace_is_the_platforms_time_less_ten_seconds_or_a_third(stop_within_s: float, grace_s: float) -> None:
    job = msgspec.structs.replace(job_of(), stop_within_s=stop_within_s)

    assert job.grace_s == grace_s
    assert msgspec.structs.replace(job, settings=Settings(grace_s=7)).grace_s == 7
