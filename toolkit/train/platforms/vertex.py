"""A replica of a Vertex AI custom job.

CLUSTER_SPEC lists the replicas of each worker pool; AIP_* name the folders for results
(https://cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables, .../distributed-training,
2026-11). Vertex AI mounts each gs:// bucket below /gcs.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit.errors import ContractError
from toolkit.settings import Settings
from toolkit.train.platforms.place import Place, cluster_of, job_name, json_object, listed_hosts, whole_number


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the replica's place: all replicas, pool by pool, the chief of workerpool0 first.

    A pool of reduction servers does not run `train`: with one, the user lists the other replicas in TOOLKIT_HOSTS.

    Raises:
        ContractError: CLUSTER_SPEC does not have Vertex AI's format.
    """
    pools, task = _cluster(environ.get("CLUSTER_SPEC", ""))
    replica = environ.get("HOSTNAME") or "replica"
    hosts = tuple(address.rpartition(":")[0] or address for name in sorted(pools) for address in pools[name])
    current = replica
    if hosts:
        pool = pools.get(task.get("type", ""), [])
        index = whole_number(str(task.get("index", "")), "CLUSTER_SPEC: $.task.index", below=max(len(pool), 1))
        if not pool:
            raise ContractError("$.task.type: expected one of the pools in $.cluster", where="CLUSTER_SPEC")
        current = pool[index].rpartition(":")[0] or pool[index]
    listed = listed_hosts(msgspec.structs.replace(settings, host=settings.host or current), environ)
    hosts, current = listed or (hosts or (replica,), current)
    return Place(
        cluster=cluster_of(hosts, current),
        name=job_name("vertex", environ.get("CLOUD_ML_JOB_ID", "")) if environ.get("CLOUD_ML_JOB_ID") else "",
        model=_mounted(environ.get("AIP_MODEL_DIR", "")),
        checkpoints=_mounted(environ.get("AIP_CHECKPOINT_DIR", "")),
    )


def _cluster(text: str) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Return (replicas by pool, the task): {} and {} without a CLUSTER_SPEC."""
    if not text:
        return {}, {}
    expected = '{"cluster": {"workerpool0": [...], ...}, "task": {"type": ..., "index": ...}}'
    spec = json_object(text, "CLUSTER_SPEC", expected)
    pools, task = spec.get("cluster"), spec.get("task")
    if (
        not isinstance(pools, dict)
        or not isinstance(task, dict)
        or not all(type(pool) is list for pool in pools.values())
    ):
        raise ContractError(f"expected {expected}, found another shape", where="CLUSTER_SPEC")
    return {str(name): [str(address) for address in pool] for name, pool in pools.items()}, task


def _mounted(uri: str) -> str:
    """Return the path at which a gs:// *uri* is mounted, "" for any other."""
    return "/gcs/" + uri.removeprefix("gs://").rstrip("/") if uri.startswith("gs://") else ""
