"""Pure: a job as a task of SkyPilot, for `sky jobs launch`.

SkyPilot starts the task's script on each node, in a container of the image. A managed job is started again after an
exit code in `recover_on_exit_codes`, and after a node is lost.
https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

from typing import Any

from toolkit.commands.render.inside import (
    CODE,
    DATA,
    RETRIED,
    Choices,
    check_hosts_have,
    check_image,
    lower_name,
    mebibytes,
    start_script,
)
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile


def task(job_file: JobFile, choices: Choices) -> dict[str, Any]:
    """Return the task. SkyPilot uploads the source and channels that are folders of this machine.

    Raises:
        ContractError: no image or no type of GPU is given, or the job asks for what a task cannot have.
    """
    check_image(choices)
    check_hosts_have(job_file, uploads_channels=True)
    uploads = {CODE: str(job_file.source)}
    uploads |= {f"{DATA}/{channel.name}": str(channel.folder) for channel in job_file.channels if not channel.uri}
    described: dict[str, Any] = {
        "name": lower_name(job_file, 40),
        "num_nodes": len(job_file.hosts),
        "resources": _build_resources(choices),
        "file_mounts": uploads,
    }
    if job_file.environment:
        described["envs"] = dict(job_file.environment)
    described["run"] = start_script(
        job_file,
        first_host='"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
        host_index='"$SKYPILOT_NODE_RANK"',
        host_count='"$SKYPILOT_NUM_NODES"',
    )
    return described


def _build_resources(choices: Choices) -> dict[str, Any]:
    resources: dict[str, Any] = {"image_id": f"docker:{choices.image}"}
    if choices.gpus:
        if not choices.gpu_type:
            message = f"expected the type of the {choices.gpus} GPUs, as --gpu-type A100, found none"
            raise ContractError(message, where="--gpus", hint="`sky show-gpus` lists the types.")
        resources["accelerators"] = {choices.gpu_type: choices.gpus}
    if choices.cpus:
        resources["cpus"] = f"{choices.cpus}+"
    if choices.memory:
        resources["memory"] = f"{max(1, round(mebibytes(choices.memory) / 1024))}+"
    resources["job_recovery"] = {"recover_on_exit_codes": list(RETRIED)}
    return resources
