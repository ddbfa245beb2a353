"""Pure: a job as a Compose project, with one container on this machine for each host.

Needs Compose 2.23.1 or newer (a config's `content`). https://github.com/compose-spec/compose-spec
"""

import json
import re
from typing import Any

from toolkit.commands.render.inside import CODE, CONFIG, DATA, FILE, STOP_WITHIN_S, Choices, document
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

WRITTEN = ("model", "output")


def project(job_file: JobFile, choices: Choices) -> dict[str, Any]:
    """Return the project. Source and channels are mounted read-only; model and output are folders of the job.

    Raises:
        ContractError: no image is given, or the job asks for what containers cannot have.
    """
    if not choices.image:
        raise ContractError("expected the image that has the toolkit, found none", where="--image")
    text = json.dumps(document(job_file), indent=2, ensure_ascii=False) + "\n"
    return {
        "name": re.sub("[^a-z0-9_-]+", "-", job_file.name.lower()),
        "services": {
            host: _build_service(job_file, choices, host, number) for number, host in enumerate(job_file.hosts)
        },
        "configs": {"job": {"content": text.replace("$", "$$")}},
    }


def folders(job_file: JobFile) -> tuple[str, ...]:
    """Return the folders that the containers write to. The engine would create missing ones as root's."""
    checkpoints = () if job_file.checkpoints is None else (str(job_file.checkpoints),)
    return (*(f"{_results_folder(job_file, host)}/{name}" for host in job_file.hosts for name in WRITTEN), *checkpoints)


def _results_folder(job_file: JobFile, host: str) -> str:
    return f"{job_file.run.job_dir}/hosts/{host}"


def _build_service(job_file: JobFile, choices: Choices, host: str, number: int) -> dict[str, Any]:
    """Return the container of *host*, which has *number* others before it."""
    volumes = [_build_bind_mount(str(job_file.source), CODE, read_only=True)]
    mounted = [channel for channel in job_file.channels if not channel.uri]  # `train` fetches the others.
    volumes += [
        _build_bind_mount(str(channel.folder), f"{DATA}/{channel.name}", read_only=channel.file_system != "rw")
        for channel in mounted
    ]
    volumes += [_build_bind_mount(f"{_results_folder(job_file, host)}/{name}", f"/opt/ml/{name}") for name in WRITTEN]
    if job_file.checkpoints is not None:
        volumes.append(_build_bind_mount(str(job_file.checkpoints), "/opt/ml/checkpoints"))
    service: dict[str, Any] = {
        "image": choices.image,
        "hostname": host,
        "command": ["train"],
        "environment": {
            "TOOLKIT_HOSTS": ",".join(job_file.hosts),
            "TOOLKIT_HOST": host,
            "TOOLKIT_STOP_WITHIN_S": str(STOP_WITHIN_S),
        },
        "configs": [{"source": "job", "target": f"{CONFIG}/{FILE}"}],
        "volumes": volumes,
        "shm_size": choices.shm.replace("Gi", "gb").replace("Mi", "mb"),
        "stop_grace_period": f"{STOP_WITHIN_S}s",
    }
    if choices.cpus:
        service["cpus"] = choices.cpus
    if choices.memory:
        service["mem_limit"] = choices.memory.replace("Gi", "gb").replace("Mi", "mb")
    if choices.user:
        service["user"] = choices.user
        service["environment"]["HOME"] = "/tmp"  # The image does not know the user: caches would go to "/".
    if choices.gpus:
        # A count would give every host the machine's first GPUs.
        device_ids = [str(index) for index in range(number * choices.gpus, (number + 1) * choices.gpus)]
        devices = [{"driver": "nvidia", "device_ids": device_ids, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service


def _build_bind_mount(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    volume: dict[str, Any] = {"type": "bind", "source": source.replace("$", "$$"), "target": target}
    if read_only:
        volume["read_only"] = True
    else:
        volume["bind"] = {"create_host_path": True}
    return volume
