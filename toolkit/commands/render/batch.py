"""Pure: a job as a job definition of AWS Batch, a multi-node parallel one for several hosts.

Fields: https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html. Batch judges a multi-node
job by its main node, and all hosts of a job end with the same exit code.
"""

from typing import Any

from toolkit.commands.render.inside import (
    RETRIED,
    RETRIES,
    Choices,
    check_hosts_have,
    check_image,
    lower_name,
    mebibytes,
    start_script,
)
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

# Batch waits so long between SIGTERM and SIGKILL (https://docs.aws.amazon.com/batch/latest/userguide/job_timeouts.html).
STOP_WITHIN_S = 30
# The least time limit that Batch takes.
LEAST_LIMIT_S = 60
# The main node is not told its own address.
MAIN_ADDRESS = '"${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-$(hostname -i | cut -d " " -f 1)}"'


def definition(job_file: JobFile, choices: Choices) -> dict[str, Any]:
    """Return the job definition. The image has the source in /opt/ml/code; channels come from storage.

    Raises:
        ContractError: the image, the CPUs or the memory are not given, or the job asks for what Batch cannot have.
    """
    check_image(choices)
    check_hosts_have(job_file)
    for option, value in (("--cpus", choices.cpus), ("--memory", choices.memory)):
        if not value:
            raise ContractError("expected it, since Batch places a job by it, found none", where=option)
    container = _build_container(job_file, choices)
    count = len(job_file.hosts)
    described: dict[str, Any] = {"jobDefinitionName": lower_name(job_file, 128)}
    if count > 1:
        nodes = [{"targetNodes": f"0:{count - 1}", "container": container}]
        node_properties = {"numNodes": count, "mainNode": 0, "nodeRangeProperties": nodes}
        described |= {"type": "multinode", "nodeProperties": node_properties}
    else:
        described |= {"type": "container", "containerProperties": container}
    rules: list[dict[str, str]] = [{"onExitCode": str(code), "action": "RETRY"} for code in RETRIED]
    # A machine that went away: Batch's documentation gives this pattern for Spot.
    rules += [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
    described["retryStrategy"] = {"attempts": 1 + RETRIES, "evaluateOnExit": rules}
    if job_file.run.max_run_s is not None:
        described["timeout"] = {"attemptDurationSeconds": max(LEAST_LIMIT_S, round(job_file.run.max_run_s))}
    return described


def _build_container(job_file: JobFile, choices: Choices) -> dict[str, Any]:
    requirements = [("VCPU", str(choices.cpus)), ("MEMORY", str(mebibytes(choices.memory)))]
    if choices.gpus:
        requirements.append(("GPU", str(choices.gpus)))
    script = start_script(
        job_file,
        first_host=MAIN_ADDRESS,
        host_index='"$AWS_BATCH_JOB_NODE_INDEX"',
        host_count='"$AWS_BATCH_JOB_NUM_NODES"',
    )
    variables = {"TOOLKIT_STOP_WITHIN_S": str(STOP_WITHIN_S), **job_file.environment}
    return {
        "image": choices.image,
        "command": ["sh", "-c", script],
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in requirements],
        "linuxParameters": {"sharedMemorySize": mebibytes(choices.shm)},
    }
