"""What a job may ask for and does not get yet: its log says so, and nothing else is given in its place (34, 65)."""

from pathlib import Path

import pytest

from tests.train.base import Base

REPOSITORY = {"CA_REPOSITORY_ARN": "arn:aws:codeartifact:eu-central-1:123456789012:repository/domain/name"}


@pytest.mark.parametrize(
    ("hyperparameters", "environ"),
    [({"sagemaker_s3_output": '"s3://bucket/prefix"'}, {}), ({}, REPOSITORY)],
    ids=["sagemaker_s3_output", "CA_REPOSITORY_ARN, nothing to install"],
)
def test_what_is_not_served_yet_is_said(base: Base, hyperparameters: dict[str, str], environ: dict[str, str]) -> None:
    base.hyperparameters(hyperparameters)
    base.program("print('ran')\n")

    done = base.train(environ)

    asked = [*hyperparameters, *environ]
    assert (done.status, done.stdout) == (0, b"ran\n")
    assert f"[toolkit] warning: {asked[0]} is not supported yet" in done.log


@pytest.mark.parametrize("file", ["requirements.txt", "setup.py"])
def test_no_other_index_is_asked_where_a_job_names_a_repository(base: Base, tmp_path: Path, file: str) -> None:
    base.program("print('ran')\n")
    (base.code / file).write_text("some-name-of-ours\n" if file == "requirements.txt" else "raise SystemExit(3)\n")
    asked = tmp_path / "asked"
    index = {"PIP_INDEX_URL": asked.as_uri(), "PIP_RETRIES": "0"}

    done = base.train({**REPOSITORY, **index})

    assert (done.status, done.stdout) == (78, b"")
    assert done.failure is not None
    assert done.failure.startswith("ClientError:\nExitCode 78\n")
    assert "expected packages from AWS CodeArtifact alone" in done.failure
    assert "PIP_INDEX_URL" in done.failure
    assert "Looking in indexes" not in done.log


def test_a_job_that_asks_for_neither_hears_nothing_of_it(base: Base) -> None:
    base.program("")

    assert "not supported" not in base.train().log
