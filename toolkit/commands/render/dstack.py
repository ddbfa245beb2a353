"""Pure: a job as a task of dstack, for `dstack apply`.

dstack starts the task's commands on each node, in a container of the image. It can retry after an interruption, but
not by exit code. https://dstack.ai/docs/reference/dstack.yml/task
"""

from typing import Any

from toolkit.commands.render.inside import (
    CODE,
    Choices,
    check_hosts_have,
    check_image,
    lower_name,
    mebibytes,
    start_script,
)
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

# How long after an interruption dstack looks for another machine.
RETRY_FOR = "4h"


def task(job_file: JobFile, choices: Choices) -> dict[str, Any]:
    """Return the task. dstack uploads the source; channels come from storage.

    Raises:
        ContractError: no image is given, or the job asks for what a task cannot have.
    """
    check_image(choices)
    check_hosts_have(job_file)
    if ":" in str(job_file.source):
        message = f"source: expected a path without ':', which separates dstack's paths, found {job_file.source}"
        raise ContractError(message, where="job file", hint="Rename the folder.")
    described: dict[str, Any] = {
        "type": "task",
        "name": lower_name(job_file, 40),
        "nodes": len(job_file.hosts),
        "image": choices.image,
        "files": [f"{job_file.source}:{CODE}"],
    }
    if job_file.environment:
        described["env"] = dict(job_file.environment)
    script = start_script(
        job_file,
        first_host='"$DSTACK_MASTER_NODE_IP"',
        host_index='"$DSTACK_NODE_RANK"',
        host_count='"$DSTACK_NODES_NUM"',
    )
    described |= {
        "commands": [script],
        "resources": _build_resources(choices),
        "retry": {"on_events": ["no-capacity", "interruption"], "duration": RETRY_FOR},
    }
    if job_file.run.max_run_s is not None:
        described["max_duration"] = f"{max(1, round(job_file.run.max_run_s))}s"
    return described


def _build_resources(choices: Choices) -> dict[str, Any]:
    resources: dict[str, Any] = {"shm_size": _format_size(choices.shm)}
    if choices.cpus:
        resources["cpu"] = f"{choices.cpus}.."
    if choices.memory:
        resources["memory"] = f"{_format_size(choices.memory)}.."
    if choices.gpus:
        resources["gpu"] = {**({"name": choices.gpu_type} if choices.gpu_type else {}), "count": choices.gpus}
    return resources


def _format_size(size: str) -> str:
    """Return *size*, as 64Gi, in dstack's units: MB and GB are powers of 1,024 there."""
    return f"{mebibytes(size)}MB"
