"""78: model_dir, which SageMaker's TensorFlow estimator passes to scripts, and what TensorFlow Serving would miss."""

from pathlib import Path

import pytest

from tests.train.base import SEES, Base
from toolkit.train.artifacts.saved_model import warnings

TENSORFLOW = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_tensorflow_container.training:main"}
TUNED = {"_tuning_objective_metric": '"loss"', "sagemaker_job_name": '"walk"'}


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return Base(tmp_path)


@pytest.mark.parametrize(
    ("model_dir", "expected"),
    [
        ("s3://bucket/models", "s3://bucket/models/walk/model"),
        ("s3://bucket/models/", "s3://bucket/models/walk/model"),
        ("/opt/ml/model", "/opt/ml/model"),
        ("/opt/ml/shared/model", "/opt/ml/shared/model"),
    ],
)
def test_each_job_of_a_tuning_job_has_a_model_dir_of_its_own(base: Base, model_dir: str, expected: str) -> None:
    base.hyperparameters({"model_dir": f'"{model_dir}"', **TUNED})
    base.program(SEES)

    done = base.train(TENSORFLOW)

    assert done.argv == ["--model_dir", expected]
    assert done.environ["SM_HP_MODEL_DIR"] == expected


def test_without_tuning_model_dir_stays_and_tensorflow_gets_its_variables(base: Base) -> None:
    base.hyperparameters({"model_dir": '"s3://bucket/models"', "sagemaker_region": '"eu-central-1"'})
    base.program(SEES)

    done = base.train({**TENSORFLOW, "S3_USE_HTTPS": "0"})

    assert done.argv == ["--model_dir", "s3://bucket/models"]
    variables = {name: done.environ[name] for name in ("S3_REGION", "S3_USE_HTTPS", "TF_CPP_MIN_LOG_LEVEL")}
    assert variables == {"S3_REGION": "eu-central-1", "S3_USE_HTTPS": "0", "TF_CPP_MIN_LOG_LEVEL": "1"}


def test_a_job_of_another_framework_keeps_its_model_dir(base: Base) -> None:
    base.hyperparameters({"model_dir": '"s3://bucket/models"', **TUNED})
    base.program(SEES)

    done = base.train(SAGEMAKER_TRAINING_MODULE="sagemaker_pytorch_container.training:main")

    assert done.argv == ["--model_dir", "s3://bucket/models"]
    assert "S3_REGION" not in done.environ


SAVES = """
import os, pathlib, sys
for name in sys.argv[2:]:
    path = pathlib.Path(os.environ["SM_MODEL_DIR"], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
"""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "is empty: the job leaves no model"),
        (("weights.h5",), "no SavedModel below"),
        (("export/saved_model.pb",), "is not in a folder whose name is a number"),
        (("1/saved_model.pb", "1/variables/variables.index"), ""),
    ],
)
def test_a_model_that_tensorflow_serving_cannot_load_is_named_at_the_end(
    base: Base, names: tuple[str, ...], message: str
) -> None:
    base.hyperparameters({"model_dir": '"s3://bucket/models"'})
    base.program(SAVES.replace("sys.argv[2:]", repr(names)))

    done = base.train(TENSORFLOW)

    assert done.status == 0
    assert (message in done.log) if message else ("SavedModel" not in done.log)


def test_a_bundle_in_text_counts_and_each_bundle_is_judged(tmp_path: Path) -> None:
    for name in ("2/saved_model.pbtxt", "best/saved_model.pb"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()

    (warning,) = warnings(tmp_path)

    assert str(tmp_path / "best") in warning


def test_the_replaced_plug_in_is_said_once(base: Base) -> None:
    base.program("print('here')\n")

    done = base.train(TENSORFLOW)

    assert done.status == 0
    assert "sagemaker_tensorflow_container.training:main, which AWS's images set, is ignored" in done.log
