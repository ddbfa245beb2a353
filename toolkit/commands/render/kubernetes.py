"""Pure: a job as Kubernetes manifests, an Indexed Job with a headless service or a JobSet.

The exit code decides about retries (docs/orchestrators/kubernetes.md): a pod that was moved or lost its peers is
retried, a pod whose script failed is not. Fields: https://kubernetes.io/docs/reference/kubernetes-api,
https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2.
"""

import json
import re
from typing import Any

from toolkit.commands.render.inside import (
    CONFIG,
    DATA,
    FILE,
    PLACES,
    RETRIED,
    RETRIES,
    STOP_WITHIN_S,
    Choices,
    channel_keys,
    checked_claims,
    document,
)
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile

# A pod's host name consists of the job's name and an index, and has at most 63 characters.
NAME_LENGTH = 40
INDEX = "JOB_COMPLETION_INDEX"
GROUP = "host"
# A finished job, with its pods' logs and messages, is removed after a week.
KEPT_S = 7 * 24 * 3600
# `toolkit health` fails if `train` has made no progress for 60 s, or has found a hang. A node that is too busy to
# answer loses its job only after five minutes.
LIVENESS = {
    "exec": {"command": ["toolkit", "health"]},
    "periodSeconds": 60,
    "timeoutSeconds": 30,
    "failureThreshold": 5,
}

# A JobSet restarts as a whole, but for a failure that the pods' policy calls final.
FAILURE_POLICY = {
    "maxRestarts": RETRIES,
    "rules": [{"name": "notWorthARetry", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
}


def job(job_file: JobFile, choices: Choices) -> tuple[dict[str, Any], ...]:
    """Return the config map with the job file, the service (for several hosts) and the Indexed Job.

    Raises:
        ContractError: no image is given, the job has several instance groups, or a channel has no claim.
    """
    if len(job_file.groups) > 1:
        message = f"expected one instance group, found {len(job_file.groups)}"
        raise ContractError(message, where="job file", hint="Pods of one Job are all alike: use a jobset.")
    name = choose_name(job_file, choices)
    config = build_config_map(job_file, name)
    count = len(job_file.hosts)
    hosts = f"{name}-{_format_range(count)}.{name}" if count > 1 else ""
    own_host = f"{name}-$({INDEX}).{name}" if count > 1 else ""
    template = build_pod_template(job_file, choices, name, hosts, own_host)
    if count > 1:
        template["spec"]["subdomain"] = name
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": build_job_spec(job_file, count, template, retries=RETRIES * count),
    }
    return config, *((_build_service(name),) if count > 1 else ()), manifest


def jobset(job_file: JobFile, choices: Choices) -> tuple[dict[str, Any], ...]:
    """Return the config map with the job file, and a JobSet with one replicated job for each instance group.

    Raises:
        ContractError: no image is given, a channel has no claim, or two groups would have one name.
    """
    name = choose_name(job_file, choices)
    config = build_config_map(job_file, name)
    groups = [
        (group_name, len(group.hosts), group)
        for group_name, group in zip(_choose_group_names(job_file), job_file.groups, strict=True)
    ]
    several = len(job_file.hosts) > 1
    hosts = ",".join(f"{name}-{group}-0-{_format_range(count)}.{name}" for group, count, _ in groups) if several else ""
    jobs = []
    for group, count, described in groups:
        own_host = f"{name}-{group}-0-$({INDEX}).{name}" if several else ""
        template = build_pod_template(job_file, choices, name, hosts, own_host, group=group if len(groups) > 1 else "")
        if described.instance_type != "local":
            labels = template["spec"].setdefault("nodeSelector", {})
            labels.setdefault("node.kubernetes.io/instance-type", described.instance_type)
        # The JobSet retries as a whole, with all hosts.
        job_spec = build_job_spec(job_file, count, template, retries=0)
        jobs.append({"name": group, "replicas": 1, "template": {"spec": job_spec}})
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "ttlSecondsAfterFinished": KEPT_S,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": FAILURE_POLICY,
            "replicatedJobs": jobs,
        },
    }
    return config, manifest


def choose_name(job_file: JobFile, choices: Choices) -> str:
    """Return the job's name, with the run's suffix, as a DNS label that leaves room for suffixes of pods."""
    suffix = f"-{choices.suffix}" if choices.suffix else ""
    name = re.sub("[^a-z0-9]+", "-", job_file.name.lower())[: NAME_LENGTH - len(suffix)].strip("-")
    return (name if name[0].isalpha() else f"job-{name}") + suffix


def _choose_group_names(job_file: JobFile) -> tuple[str, ...]:
    """Return the replicated jobs' names, by which the groups' pods and results are told apart."""
    if len(job_file.groups) == 1:
        return (GROUP,)
    names = tuple(re.sub("[^a-z0-9]+", "-", group.name.lower())[:15].strip("-") for group in job_file.groups)
    if "" in names or len(set(names)) < len(names):
        message = (
            "instance-groups: expected names that differ in the letters a-z and digits of their first 15 characters"
        )
        raise ContractError(f"{message}, found {', '.join(group.name for group in job_file.groups)}", where="job file")
    return names


def _format_range(count: int) -> str:
    return f"[0-{count - 1}]" if count > 1 else "0"


def build_config_map(job_file: JobFile, name: str) -> dict[str, Any]:
    text = json.dumps(document(job_file), indent=2, ensure_ascii=False) + "\n"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-job"}, "data": {FILE: text}}


def _build_service(name: str) -> dict[str, Any]:
    """Return the headless service through which the pods of a Job find each other, even before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }


def build_job_spec(job_file: JobFile, count: int, template: dict[str, Any], *, retries: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "completions": count,
        "parallelism": count,
        "completionMode": "Indexed",
        "backoffLimit": retries,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": template["spec"]["containers"][0]["name"],
                        "operator": "NotIn",
                        "values": list(RETRIED),
                    },
                },
            ]
        },
        "template": template,
    }
    if retries:  # Else it is one of a JobSet, which has the time itself.
        spec["ttlSecondsAfterFinished"] = KEPT_S
    if job_file.run.max_run_s is not None:
        spec["activeDeadlineSeconds"] = max(1, round(job_file.run.max_run_s))
    return spec


def build_pod_template(
    job_file: JobFile, choices: Choices, name: str, hosts: str, own_host: str, *, group: str = ""
) -> dict[str, Any]:
    """Return the pods' template. *own_host*: this host's name among *hosts*; both are empty for a single host. *group*:
    the instance group of these pods, if there are several."""
    if not choices.image:
        raise ContractError("expected the image that has the toolkit and the code, found none", where="--image")
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    environ: list[dict[str, Any]] = [{"name": INDEX, "valueFrom": {"fieldRef": index}}]
    if hosts:
        environ += [{"name": "TOOLKIT_HOSTS", "value": hosts}, {"name": "TOOLKIT_HOST", "value": own_host}]
    environ.append({"name": "TOOLKIT_STOP_WITHIN_S", "value": str(STOP_WITHIN_S)})
    mounts, volumes = _build_volumes(job_file, choices, name, group)
    container: dict[str, Any] = {
        "name": "train",
        "image": choices.image,
        "command": ["train"],
        "env": environ,
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        # A container that is killed as a whole, for instance out of memory, writes no message: its last lines are used.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    container["livenessProbe"] = LIVENESS
    container["securityContext"] = _container_rights(choices)
    if choices.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in choices.secrets]
    resources = _build_resources(choices)
    if resources:
        container["resources"] = resources
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": STOP_WITHIN_S,
        "securityContext": _pod_rights(choices),
        "automountServiceAccountToken": bool(choices.service_account),
        "containers": [container],
        "volumes": volumes,
    }
    return {"spec": {**spec, **_build_placement(choices)}}


def _build_resources(choices: Choices) -> dict[str, Any]:
    """Return what a pod asks for. Memory and GPUs are its limit, too; CPUs that nobody else uses are not held back."""
    limits: dict[str, Any] = {"nvidia.com/gpu": choices.gpus} if choices.gpus else {}
    if choices.memory:
        limits["memory"] = choices.memory
    requests = {**limits, **({"cpu": choices.cpus} if choices.cpus else {})}
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _container_rights(choices: Choices) -> dict[str, Any]:
    """Return the container's rights. Root keeps its capabilities: without them it cannot write to folders of others."""
    if not choices.user or int(choices.user.partition(":")[0]) == 0:
        return {"allowPrivilegeEscalation": False}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pod_rights(choices: Choices) -> dict[str, Any]:
    rights: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if choices.user:
        user, _, group = choices.user.partition(":")
        rights |= {"runAsUser": int(user), "runAsGroup": int(group or user), "fsGroup": int(group or user)}
        rights["runAsNonRoot"] = int(user) != 0
    return rights


def _build_placement(choices: Choices) -> dict[str, Any]:
    """Return which nodes the pods may have, and who they are there."""
    tolerations: list[dict[str, Any]] = []
    if choices.gpus:  # The taint of GPU nodes that clouds and NVIDIA's operator set.
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists"})
    for toleration in choices.tolerations:
        entry = {"key": toleration.key, "operator": "Equal" if toleration.value else "Exists"}
        entry |= {"value": toleration.value} if toleration.value else {}
        tolerations.append(entry | ({"effect": toleration.effect} if toleration.effect else {}))
    placement = {
        "serviceAccountName": choices.service_account,
        "imagePullSecrets": [{"name": name} for name in choices.pull_secrets],
        "nodeSelector": dict(choices.node_labels),
        "tolerations": tolerations,
    }
    return {name: value for name, value in placement.items() if value}


def _build_volumes(
    job_file: JobFile, choices: Choices, name: str, group: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (mounts, volumes): the job file, shared memory, and each claim. Each host has its own model and output, by
    its index, which counts the pods of its group; all share the rest."""
    mounts: list[dict[str, Any]] = [
        {"name": "job", "mountPath": CONFIG, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": f"{name}-job"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": choices.shm}},
    ]
    claims = checked_claims(job_file, choices)
    places = {**{key: f"{DATA}/{channel}" for channel, key in channel_keys(job_file).items()}, **PLACES}
    shared = {channel_keys(job_file)[channel.name] for channel in job_file.channels if channel.file_system == "rw"}
    # A volume's name takes less than that of a claim: no dots, and 63 characters.
    volume_of = {
        claim: f"claim-{number}" for number, claim in enumerate(sorted({claim for claim, _ in claims.values()}))
    }
    for claim, volume in volume_of.items():
        volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
    for content, (claim, folder) in claims.items():
        mount: dict[str, Any] = {"name": volume_of[claim], "mountPath": places[content]}
        if content in ("model", "output"):
            mount["subPathExpr"] = "/".join(filter(None, (folder, name, group, f"$({INDEX})", content)))
        elif folder:
            mount["subPath"] = folder
        if content not in ("model", "output", "checkpoints", *shared):
            mount["readOnly"] = True
        mounts.append(mount)
    return mounts, volumes
