"""TOOLKIT_PROFILE: what ranks get of it, and what `train` refuses before the job starts."""

import pytest

from tests.train.launchers.jobs import job_of
from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.launchers import profiling
from toolkit.train.launchers.environment import environment


@pytest.mark.parametrize(
    ("setting", "window"),
    [
        ("steps 10-20", "steps 10 20"),
        ("steps 10 - 20", "steps 10 20"),
        ("steps 7", "steps 7 7"),
        ("seconds 60-75", "seconds 60 75"),
        ("seconds 0-5", "seconds 0 5"),
    ],
)
def test_a_window_is_passed_to_the_ranks(setting: str, window: str) -> None:
    environ = environment(job_of(settings=Settings(profile=setting)), ())

    assert environ["TOOLKIT_PROFILE_WINDOW"] == window


def test_without_the_setting_ranks_get_none_also_not_that_of_a_train_around_this_one() -> None:
    environ = environment(job_of(environ={"TOOLKIT_PROFILE_WINDOW": "steps 1 2"}), ())

    assert "TOOLKIT_PROFILE_WINDOW" not in environ


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("10-20", "found '10-20'"),
        ("epochs 1-2", "found 'epochs 1-2'"),
        ("seconds 60", "found 'seconds 60'"),
        ("steps 20-10", "found 'steps 20-10', which ends before it has begun"),
        ("seconds 5-5", "which ends before it has begun"),
        ("steps 0-5", "found step 0: steps are counted from 1"),
        ("steps -5", "found 'steps -5'"),
    ],
)
def test_a_wrong_window_is_refused_with_what_was_expected(setting: str, reason: str) -> None:
    with pytest.raises(ContractError) as refused:
        profiling.variables(job_of(settings=Settings(profile=setting)))

    assert refused.value.exit_code == 78
    assert 'TOOLKIT_PROFILE: expected "steps FIRST-LAST" or "seconds FROM-TO", ' in str(refused.value)
    assert reason in str(refused.value)


def test_without_the_hook_nothing_can_be_traced() -> None:
    with pytest.raises(ContractError, match="TOOLKIT_RANK_HOOK=off"):
        profiling.variables(job_of(settings=Settings(profile="steps 1-2", rank_hook="off")))
