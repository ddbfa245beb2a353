"""Runs the user's script: what framework packages call."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sagemaker_training import environment, errors, modules, runner
from toolkit.errors import UserError
from toolkit.train.source.classify import classify

__all__ = ["install", "run"]


def run(
    uri: str,
    user_entry_point: str,
    args: Sequence[str],
    env_vars: Mapping[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    runner_type: runner.RunnerType | runner.Runner = runner.ProcessRunnerType,
    extra_opts: Mapping[str, Any] | None = None,
) -> Any:
    """Fetch the source, install what it needs, and run the script under the launcher of *runner_type*.

    *uri*: a folder, archive, file or URI, as the job's sagemaker_submit_directory. *env_vars* are set in this process,
    too. *capture_error* changes nothing: the cause of a failure is always known. *extra_opts*: mpirun's options and the
    number of processes, by the names of params.py. Return the script's process; without *wait*, at once.

    Raises:
        ExecuteUserScriptError: the script failed.
        InstallModuleError, InstallRequirementsError: pip failed.
        ClientError: the source or the script is missing or wrong.
    """
    environment.write_env_vars(dict(env_vars or {}))
    chosen_runner = runner.get(runner_type, user_entry_point, args, env_vars, extra_opts, uri=uri or "")
    return chosen_runner.run(wait, capture_error)


def install(name: str, path: str = environment.code_dir, capture_error: bool = False) -> None:
    """Prepare the script *name* in the folder *path*: install its package or requirements.txt, make it executable.

    Raises:
        InstallModuleError, InstallRequirementsError: pip failed.
        ClientError: there is no such script.
    """
    if path not in sys.path:
        sys.path.insert(0, path)
    try:
        script = classify(Path(path), name, None, "sagemaker")
    except UserError as error:
        raise errors.ClientError(str(error)) from error
    if script.kind == "package":
        modules.install(path, capture_error)
    elif modules.has_requirements(path):
        modules.install_requirements(path, capture_error)
