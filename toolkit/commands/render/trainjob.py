"""Pure: a job as a TrainJob of Kubeflow Trainer v2, with a TrainingRuntime of its own.

A TrainJob has no policy for exit codes; the JobSet of its runtime has one. Trainer numbers the pods and names the
leader by PET_* variables, which `train` reads (train/platforms/kubeflow.py).
https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime
"""

from typing import Any

from toolkit.commands.render.inside import Choices
from toolkit.commands.render.kubernetes import (
    FAILURE_POLICY,
    build_config_map,
    build_job_spec,
    build_pod_template,
    choose_name,
)
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

API = "trainer.kubeflow.org/v1alpha1"
# Trainer's name for the replicated job and its container that train (pkg/constants of kubeflow/trainer v2.3).
NODE = "node"
ROLE = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def train_job(job_file: JobFile, choices: Choices) -> tuple[dict[str, Any], ...]:
    """Return the config map with the job file, the TrainingRuntime and the TrainJob.

    Raises:
        ContractError: no image is given, the job has several instance groups, or a channel has no claim.
    """
    if len(job_file.groups) > 1:
        message = f"expected one instance group, found {len(job_file.groups)}"
        raise ContractError(message, where="job file", hint="Nodes of one TrainJob are all alike: use a jobset.")
    name, count = choose_name(job_file, choices), len(job_file.hosts)
    template = build_pod_template(job_file, choices, name, "", "")
    template["spec"]["containers"][0]["name"] = NODE
    job_spec = build_job_spec(job_file, count, template, retries=0)
    limit_s = job_spec.pop("activeDeadlineSeconds", None)
    replicated = {"name": NODE, "replicas": 1, "template": {"metadata": {"labels": ROLE}, "spec": job_spec}}
    job_set = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": FAILURE_POLICY,
        "replicatedJobs": [replicated],
    }
    runtime = {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": {"numNodes": count, "torch": {}}, "template": {"spec": job_set}},
    }
    reference = {"apiGroup": API.partition("/")[0], "kind": "TrainingRuntime", "name": name}
    spec: dict[str, Any] = {"runtimeRef": reference, "trainer": {"numNodes": count}}
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = limit_s
    manifest = {"apiVersion": API, "kind": "TrainJob", "metadata": {"name": name}, "spec": spec}
    return build_config_map(job_file, name), runtime, manifest
