"""The settings of exporters: what they make, and what they refuse."""

from pathlib import Path

import pytest

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.train.platforms import export_targets


def test_settings_become_the_targets_of_metrics() -> None:
    own = settings.read(
        {
            "TOOLKIT_TENSORBOARD": "events",
            "TOOLKIT_WANDB_PROJECT": "vision",
            "TOOLKIT_OTLP_ENDPOINT": "http://collector:4318/",
            "TOOLKIT_TRACKER_RUN": "seventh",
        }
    )

    exports = export_targets.read(own, Path("/opt/ml/output"))

    assert exports.tensorboard == Path("/opt/ml/output/events")
    assert exports.otlp_endpoint == "http://collector:4318"
    assert (exports.wandb_project, exports.trackio_project, exports.run) == ("vision", None, "seventh")
    assert exports.trackers() == ("wandb", "otel")


@pytest.mark.parametrize(
    "text",
    ["http://mlflow:5000", "file:/mnt/runs", "/mnt/runs", "./runs", "sqlite:///runs.db", "databricks", "databricks://one",
     "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/one"],
)  # fmt: skip
def test_every_form_of_an_address_of_mlflow_is_passed_on(text: str) -> None:
    own = settings.read({"TOOLKIT_MLFLOW_TRACKING_URI": text})

    assert export_targets.read(own, Path("/opt/ml/output")).mlflow_uri == text


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("WANDB_PROJECT", "team/vision", "'team/vision' ('/')"),
        ("WANDB_PROJECT", "a" * 129, f"{'a' * 80!r} (129 characters)"),
        ("TRACKIO_PROJECT", ".vision", "'.vision' (a dot in front)"),
        ("MLFLOW_TRACKING_URI", "mlflow.example.com", "'mlflow.example.com'"),
        ("MLFLOW_TRACKING_URI", "mlflow:5000/", "'mlflow:5000/'"),
        ("OTLP_ENDPOINT", "collector:4318", "'collector:4318'"),
        ("OTLP_ENDPOINT", "grpc://collector:4317", "'grpc://collector:4317'"),
        ("OTLP_ENDPOINT", "http://:4318", "'http://:4318'"),
        ("OTLP_ENDPOINT", "http://collector:99999", "'http://collector:99999'"),
    ],
)
def test_what_can_be_no_target_is_refused_by_the_name_of_its_setting(name: str, text: str, found: str) -> None:
    own = settings.read({f"TOOLKIT_{name}": text})

    with pytest.raises(ContractError) as refused:
        export_targets.read(own, Path("/opt/ml/output"))

    assert refused.value.where == f"TOOLKIT_{name}"
    assert f"found {found}" in str(refused.value)
