"""Checks whose `sagemaker_training` programs of the image import, if there is one (docs/sagemaker-training.md)."""

from importlib import metadata, util
from pathlib import Path

from toolkit.commands.check.result import CheckResult

NAME = "sagemaker_training"
OURS = "container-training-toolkit-sagemaker-training"
THEIRS = "sagemaker-training"


def check() -> tuple[CheckResult, ...]:
    """Return a line if the package is there; a warning if it is not the toolkit's own."""
    spec = util.find_spec(NAME)
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parents[1]
    if folder.name == OURS.replace("-", "_"):
        text = f"{NAME} is this toolkit's ({_named(OURS)})"
        return (CheckResult(name=NAME, status="ok", found=text),)
    text = f"{NAME} is AWS's {_named(THEIRS)} in {folder}"
    advice = f"Uninstall it: pip uninstall {THEIRS}. Programs that import it get the toolkit's after pip install {OURS}"
    return (CheckResult(name=NAME, status="warn", found=text, advice=advice),)


def _named(distribution: str) -> str:
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return distribution
