"""The places for a job's metrics besides its own files: the settings of the exporters, checked."""

import re
from pathlib import Path

from toolkit.errors import ContractError
from toolkit.job.exports import Exports
from toolkit.settings import PREFIX, Settings

MOST_OF_A_PROJECT = 128
HOST = re.compile(r"[A-Za-z0-9][\w.-]*(:[0-9]+)?(/.*)?")
# Addresses without a scheme (mlflow 3.17, tracking/_tracking_service/utils.py).
WORDS_OF_MLFLOW = ("databricks", "databricks-uc", "uc")
REFUSED = set("/\\#?%:")


def read(settings: Settings, output: Path) -> Exports:
    """Return where metrics go; a relative folder of event files is below the output folder.

    Raises:
        ContractError: a project or an address can be none.
    """
    return Exports(
        prometheus_port=settings.prometheus_port,
        prometheus_address=settings.prometheus_address,
        tensorboard=None if settings.tensorboard is None else output / settings.tensorboard,
        mlflow_uri=_tracking_uri(settings.mlflow_tracking_uri),
        mlflow_experiment=settings.mlflow_experiment,
        wandb_project=_project("WANDB_PROJECT", settings.wandb_project),
        trackio_project=_project("TRACKIO_PROJECT", settings.trackio_project),
        otlp_endpoint=_endpoint(settings.otlp_endpoint),
        run=settings.tracker_run,
    )


def _project(name: str, text: str) -> str | None:
    """Return the project of a tracker that the setting *name* holds, None for none.

    Raises:
        ContractError: W&B refuses it (https://docs.wandb.ai, "Create a project", seen 2026-11), or Trackio cannot name
            a file so.
    """
    refused = [character for character in text if character in REFUSED or not character.isprintable()]
    if not refused and not text.startswith(".") and len(text) <= MOST_OF_A_PROJECT:
        return text or None
    reason = repr(refused[0]) if refused else "a dot in front" if text.startswith(".") else f"{len(text)} characters"
    raise ContractError(
        f"expected the name of a project, of {MOST_OF_A_PROJECT} characters at most, with none of / \\ # ? % : and no"
        f" dot in front, found {text[:80]!r} ({reason})",
        where=PREFIX + name,
        hint="Name the project alone: WANDB_ENTITY, WANDB_BASE_URL and TRACKIO_SPACE_ID say where it is.",
    )


def _tracking_uri(text: str) -> str | None:
    """Return the address of an MLflow server or store, None for none.

    Raises:
        ContractError: it is a host without a scheme, which MLflow takes for the name of a folder.
    """
    if HOST.fullmatch(text) and text not in WORDS_OF_MLFLOW:
        raise ContractError(
            f"expected the address of a server or store, as http://mlflow:5000 or sqlite:////mnt/mlflow.db, found"
            f" {text!r}",
            where=PREFIX + "MLFLOW_TRACKING_URI",
            hint="MLflow takes a text without a scheme for a folder. A folder begins with / or ./ here.",
        )
    return text or None


def _endpoint(text: str) -> str | None:
    """Return the base URL of an OTLP receiver, None for none.

    Raises:
        ContractError: it is no URL of HTTP.
    """
    if not text:
        return None
    from urllib.parse import urlsplit  # 5 ms, which only a job that sets this pays.

    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port that is no number.
        is_right = False
    if not is_right:
        raise ContractError(
            f"expected the address of an OTLP/HTTP receiver, as http://collector:4318, found {text!r}",
            where=PREFIX + "OTLP_ENDPOINT",
            hint="A collector's receiver `otlp` has `http` beside `grpc` (port 4317), which is not spoken here.",
        )
    return text.rstrip("/")
