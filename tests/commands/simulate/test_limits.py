from pathlib import Path
from typing import Any

import pytest

from tests.job.file.made import job_file
from toolkit.commands.simulate.limits import exceeded
from toolkit.job.channel import Channel
from toolkit.job.cluster import Group


def channels(count: int) -> tuple[Channel, ...]:
    return tuple(Channel(name=f"c{number}", folder=Path("/d")) for number in range(count))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"hyperparameters": {"x": "v" * 2498}}, ""),
        ({"hyperparameters": {"x": "v" * 2499}}, "hyperparameter x: a value of 2,501 characters, the limit is 2,500"),
        ({"hyperparameters": {"x" * 257: 1}}, "a name of 257 characters, the limit is 256"),
        ({"hyperparameters": {"a\nb": "c"}}, "a line break in it"),
        ({"hyperparameters": {f"x{number}": 1 for number in range(96)}}, "101 hyperparameters"),
        ({"hyperparameters": {f"x{number}": 1 for number in range(95)}}, ""),
        ({"environment": {"1x": ""}}, "variable '1x': its name may have"),
        ({"environment": {"a-b": ""}}, "variable 'a-b': its name may have"),
        ({"environment": {"A": "v" * 513}}, "variable A: 513 characters, the limit is 512"),
        ({"channels": channels(21)}, "21 channels, the limit is 20"),
        ({"channels": channels(20)}, ""),
        ({"metric_definitions": tuple((f"m{number}", "(x)") for number in range(41))}, "41 metric definitions"),
        ({"metric_definitions": (("m", f"({'x' * 499})"),)}, "a regex of 501 characters, the limit is 500"),
        ({"metric_definitions": (("m" * 256, "(x)"),)}, "a name of 256 characters, the limit is 255"),
        ({"max_run_s": 29 * 86_400.0}, "--max-run of more than 28 days"),
        (
            {"groups": tuple(Group(name=f"g{n}", hosts=(f"algo-{n}",), instance_type="local") for n in range(6))},
            "6 instance groups, the limit is 5",
        ),
    ],
)
def test_what_create_training_job_refuses_is_a_warning_with_the_limit(more: dict[str, Any], message: str) -> None:
    warnings = exceeded(job_file(**more), "us-east-1")

    if not message:
        assert warnings == ()
    else:
        assert len(warnings) == 1
        assert message in warnings[0]
        assert warnings[0].endswith(": SageMaker's CreateTrainingJob refuses it")
