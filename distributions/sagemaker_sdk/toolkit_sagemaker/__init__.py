"""The toolkit for ModelTrainer of SageMaker's SDK v3, in an image that need not have it.

    from toolkit_sagemaker import Toolkit, source_code

    ModelTrainer(
        training_image=...,
        source_code=source_code(source_dir="src", entry_script="train.py", requirements="requirements.txt"),
        distributed=Toolkit(distribution="torch_distributed"),
    ).train()

`Toolkit` sends the toolkit along, as a driver of the SDK's; `source_code` lets `train` be the first process, which
hears a stop. In the container `train` reads both from the channel sm_drivers
(toolkit/train/platforms/sagemaker/drivers.py).
"""

import os
from typing import Any

from pydantic import PositiveInt, field_validator
from sagemaker.train.configs import SourceCode
from sagemaker.train.distributed import DistributedConfig

__all__ = ["COMMAND", "Toolkit", "source_code"]
__version__ = "0.1.0"

DRIVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "driver")
SCRIPT = "toolkit_start.py"
# sm_train.sh has found the interpreter. Without `exec` bash stays PID 1, and drops SIGTERM.
COMMAND = f'exec "$SM_PYTHON_CMD" /opt/ml/input/data/sm_drivers/distributed_drivers/{SCRIPT}'
REQUIREMENTS = "requirements.txt"


class Toolkit(DistributedConfig):
    """Runs the job by the toolkit's `train`."""

    distribution: str | dict[str, Any] | None = None
    """A name that `toolkit run --distribution` takes, or the dictionary of SDK v2; None: one process on each host."""
    processes_per_host: PositiveInt | None = None
    """None: one for each device."""

    @field_validator("distribution")
    @classmethod
    def _is_no_empty_name(cls, value: Any) -> Any:
        if value in ("", {}):
            raise ValueError("expected a distribution such as 'torch_distributed', or None, found an empty one")
        return value

    @property
    def driver_dir(self) -> str:
        """The folder that the SDK sends with the job.

        Raises:
            FileNotFoundError: this is a checkout, whose packs were not built.
        """
        if not os.path.exists(os.path.join(DRIVER, "packs", "SHA256SUMS")):
            raise FileNotFoundError(
                f"expected the packs that a job carries in {DRIVER}/packs, found none: this is no built distribution."
                " In a clone of the toolkit, run scripts/carried-packs"
            )
        return DRIVER

    @property
    def driver_script(self) -> str:
        """The script that the SDK's own sm_train.sh starts if the source code has no command: then bash is PID 1."""
        return SCRIPT


class ToolkitSource(SourceCode):
    """A SourceCode whose requirements `train` installs, which can say why pip failed, in place of sm_train.sh."""

    toolkit_requirements: str | None = None


def source_code(*, source_dir: str, entry_script: str, requirements: str | None = None, **more: Any) -> SourceCode:
    """Return the SourceCode of a job of `Toolkit`.

    *requirements*: a file in *source_dir*; "auto": requirements.txt if it is there. *more*: other options of
    SourceCode, such as args, which the script gets behind its hyperparameters, and ignore_patterns.

    Raises:
        ValueError: a command is given, which is what this sets, or the requirements are no file.
    """
    if more.get("command"):
        raise ValueError(
            f"expected no command beside entry_script, found {more['command']!r}: the toolkit is the command. For"
            " one of your own use the SDK's SourceCode, without Toolkit"
        )
    local = not source_dir.startswith("s3://") and os.path.isdir(source_dir)
    if (
        requirements not in (None, "auto")
        and local
        and not os.path.isfile(os.path.join(source_dir, requirements or ""))
    ):
        raise ValueError(f"requirements: expected a file in {source_dir!r}, found no {requirements!r}")
    train_installs = requirements in ("auto", REQUIREMENTS)
    return ToolkitSource(
        source_dir=source_dir,
        entry_script=entry_script,
        requirements=None if train_installs else requirements,
        toolkit_requirements=requirements if train_installs else None,
        command=COMMAND,
        **{name: value for name, value in more.items() if name != "command"},
    )
