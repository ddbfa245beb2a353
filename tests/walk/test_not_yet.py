"""What a job may ask for and does not get yet is said in its log; the job runs without it (checklist 34, 65)."""

import pytest

from tests.walk.base import Base


@pytest.mark.parametrize(
    ("hyperparameters", "environ"),
    [
        ({"sagemaker_s3_output": '"s3://bucket/prefix"'}, {}),
        ({}, {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:eu-central-1:123456789012:repository/domain/name"}),
    ],
    ids=["sagemaker_s3_output", "CA_REPOSITORY_ARN"],
)
def test_what_is_not_served_yet_is_said(base: Base, hyperparameters: dict[str, str], environ: dict[str, str]) -> None:
    base.hyperparameters(hyperparameters)
    base.program("print('ran')\n")

    done = base.train(environ)

    asked = [*hyperparameters, *environ]
    assert (done.status, done.stdout) == (0, b"ran\n")
    assert f"[toolkit] warning: {asked[0]} is not served yet" in done.log


def test_a_job_that_asks_for_neither_hears_nothing_of_it(base: Base) -> None:
    base.program("")

    assert "not served" not in base.train().log
