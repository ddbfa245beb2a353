"""TensorFlow's MultiWorkerMirroredStrategy: the script once on each host, which finds the others in TF_CONFIG.

A process drives all the devices of its host, so there is one a host. The strategy is the script's to make; the toolkit
says who the workers are, and whose turn it is to fail, to stop and to end.
"""

import json
from pathlib import Path

import msgspec

from toolkit.job.job import Job
from toolkit.job.plan import Plan
from toolkit.launchers import script
from toolkit.launchers.environment import master, on_one_machine

PORT = 8890  # sagemaker-tensorflow-training's, as open in people's networks as it was there.


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for one worker a host."""
    return worker(script.plan(job, run_folder), job, "multi_worker_mirrored", config(job))


def worker(made: Plan, job: Job, launcher: str, tf_config: str) -> Plan:
    """Return *made*, a script's own plan, as that of *launcher*'s one process a host, told *tf_config*.

    The user's own TF_CONFIG and TF_CPP_MIN_LOG_LEVEL stay.
    """
    environ = {"TF_CONFIG": tf_config, "TF_CPP_MIN_LOG_LEVEL": "1", **made.phase.main.environ}
    several = job.cluster.size > 1
    return msgspec.structs.replace(
        made.with_main(environ=environ, rank=job.cluster.rank),
        launcher=launcher,
        role="alone" if not several else "leader" if job.cluster.is_leader else "follower",
        world_size=job.cluster.size,
        modules=("tensorflow",) if job.script is None or job.script.kind != "command" else (),
    )


def config(job: Job) -> str:
    """Return TF_CONFIG for this host's worker."""
    workers = [at(job, host, PORT, index) for index, host in enumerate(job.cluster.taking_part)]
    return text({"worker": workers}, "worker", job.cluster.rank)


def text(cluster: dict[str, list[str]], kind: str, index: int) -> str:
    """Return TF_CONFIG's text, as the original wrote it: `environment` is "cloud"."""
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": kind}})


def at(job: Job, host: str, port: int, index: int) -> str:
    """Return "address:port" of a TensorFlow server on *host*.

    Hosts that are one machine's share its ports: there the *index*-th server has the *index*-th port from MASTER_PORT
    on, which `toolkit run` chooses so that all of them are free. (TensorFlow listens on every address of a machine:
    other loopback addresses would not help.)
    """
    return f"{job.cluster.address(host)}:{master(job)[1] + index if on_one_machine(job) else port}"
