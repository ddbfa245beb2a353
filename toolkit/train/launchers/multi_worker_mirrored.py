"""TensorFlow's MultiWorkerMirroredStrategy: one worker on each host, which finds the others in TF_CONFIG.

One process drives all devices of its host. The script creates the strategy; the toolkit names the workers in TF_CONFIG
and handles failure, stop and end.
"""

import json
from pathlib import Path

import msgspec

from toolkit.job.job import Job
from toolkit.job.plan import Plan
from toolkit.train.launchers import script
from toolkit.train.launchers.environment import master, on_one_machine
from toolkit.train.launchers.table import world_size

PORT = 8890  # As in sagemaker-tensorflow-training: networks that allowed it for that need no change.


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for one worker on each host."""
    return worker(script.plan(job, run_folder), job, "multi_worker_mirrored", config(job))


def worker(plan: Plan, job: Job, launcher: str, tf_config: str) -> Plan:
    """Return *plan*, a plan of launcher script, changed to *launcher*'s: one process on each host, with *tf_config*.

    The user's own TF_CONFIG and TF_CPP_MIN_LOG_LEVEL stay.
    """
    environ = {"TF_CONFIG": tf_config, "TF_CPP_MIN_LOG_LEVEL": "1", **plan.phase.main.environ}
    several = job.cluster.size > 1
    return msgspec.structs.replace(
        plan.with_main(environ=environ, rank=job.cluster.rank),
        launcher=launcher,
        role="alone" if not several else "leader" if job.cluster.is_leader else "follower",
        world_size=world_size(job),
        modules=("tensorflow",) if job.script is None or job.script.kind != "command" else (),
    )


def config(job: Job) -> str:
    """Return TF_CONFIG for this host's worker."""
    workers = [server_address(job, host, PORT, index) for index, host in enumerate(job.cluster.taking_part)]
    return tf_config_text({"worker": workers}, "worker", job.cluster.rank)


def tf_config_text(cluster: dict[str, list[str]], kind: str, index: int) -> str:
    """Return TF_CONFIG's text, as sagemaker-tensorflow-training writes it: `environment` is "cloud"."""
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": {"index": index, "type": kind}})


def server_address(job: Job, host: str, port: int, index: int) -> str:
    """Return "address:port" of a TensorFlow server on *host*.

    A job of one host uses the port that `train` found free, because another job of the machine may have *port*.
    Simulated hosts share the ports of one machine: there the port is MASTER_PORT + *index*, and `toolkit run` chooses
    MASTER_PORT so that all of these are free. A loopback address for each host would not help: TensorFlow listens on
    every address of the machine.
    """
    server_port = master(job)[1] + index if on_one_machine(job) else job.port or port
    return f"{job.cluster.address(host)}:{server_port}"
