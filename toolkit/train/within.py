"""Refuses a `train` that the job's own script started: it would run the same job, and so start itself endlessly."""

from collections.abc import Mapping

from toolkit.errors import UserError
from toolkit.folders import is_dir
from toolkit.job.documents.sagemaker_variables import BASE_DIR
from toolkit.job.job import Folders
from toolkit.train.artifacts.scratch import RUN
from toolkit.train.fit_environment import MARKER


def is_inside(environ: Mapping[str, str]) -> bool:
    """True if another `train` started the program that has this environment."""
    return environ.get(MARKER, "").startswith(RUN)


def refusal(outer: str, folders: Folders) -> UserError | None:
    """Return why this `train` must not run, None if it may. *outer*: the run that set this environment, "" if none did.

    A run is refused while an outer run of the same base is active: the outer run's folder then exists in the folder
    that all runs of a base share.
    """
    if not outer.startswith(RUN) or "/" in outer or not is_dir(folders.scratch / outer):
        return None
    return UserError(
        f"train was started by the script of the job that it would run (base {folders.base}): it would start that"
        " script again, and so on",
        hint="Let the script start the training program itself, or name that program as the job's script"
        f" (TOOLKIT_PROGRAM). To run another job, set {BASE_DIR}.",
    )
