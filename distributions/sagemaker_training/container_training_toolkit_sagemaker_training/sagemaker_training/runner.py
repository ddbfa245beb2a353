"""The five ways in which `entry_point.run` starts a script; the toolkit's launchers do the work."""

import enum
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from sagemaker_training import _launch, environment
from toolkit.train.entry_point import ScriptRequest


class RunnerType(enum.Enum):
    """The script's starter: none, mpirun, SageMaker's data parallel library, torch_xla or torchrun.

    SMDataParallel starts torchrun for a job of pytorchddp, for which AWS's PyTorch plug-in asks for it.
    """

    Process = "Process"
    MPI = "MPI"
    SMDataParallel = "SMDataParallel"
    PyTorchXLA = "PyTorchXLA"
    TorchDistributed = "TorchDistributed"


ProcessRunnerType = RunnerType.Process
MPIRunnerType = RunnerType.MPI
SMDataParallelRunnerType = RunnerType.SMDataParallel
PyTorchXLARunnerType = RunnerType.PyTorchXLA
TorchDistributedRunnerType = RunnerType.TorchDistributed


class Runner:
    """Starts one script with its arguments and variables. `options`: of mpirun and the number of processes."""

    def __init__(
        self,
        identifier: RunnerType,
        user_entry_point: str,
        args: Sequence[str],
        env_vars: Mapping[str, str],
        options: Mapping[str, Any],
        uri: str = "",
    ) -> None:
        self.identifier = identifier
        self._request = ScriptRequest(
            uri=uri,
            entry=user_entry_point,
            arguments=tuple(str(token) for token in args),
            variables={name: str(value) for name, value in env_vars.items()},
            runner=identifier.value,
            options=dict(options),
        )

    def run(self, wait: bool = True, capture_error: bool = False) -> "subprocess.Popen[bytes]":  # noqa: ARG002
        """Start the script and return its process; *wait*: when it has ended. Errors are always captured.

        Raises:
            ClientError: the script, its requirements or the request failed.
        """
        return _launch.run(self._request, wait=wait)


def get(
    identifier: "RunnerType | Runner",
    user_entry_point: str | None = None,
    args: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extra_opts: Mapping[str, Any] | None = None,
    *,
    uri: str = "",
) -> Runner:
    """Return the runner: *identifier* itself, if it is one already. What is not given comes from the job.

    Raises:
        ValueError: *identifier* is neither a RunnerType nor a runner.
    """
    if isinstance(identifier, Runner):
        return identifier
    if not isinstance(identifier, RunnerType):
        raise ValueError(f"runner_type: expected a RunnerType, found {identifier!r}")
    if not (user_entry_point and args and env_vars):
        env = environment.Environment()
        user_entry_point = user_entry_point or env.user_entry_point or ""
        args = args or env.to_cmd_args()
        env_vars = env_vars or env.to_env_vars()
    return Runner(identifier, user_entry_point, args, env_vars, extra_opts or {}, uri)
