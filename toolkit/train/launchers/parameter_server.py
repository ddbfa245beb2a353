"""TensorFlow's parameter servers: on each host the script once, and one parameter server.

TF_CONFIG has the keys, ports and tasks that sagemaker-tensorflow-training writes: the first host's script is the
`master`, the others' scripts are workers, and every host has a `ps`, which is toolkit/rank/hook/parameter_server.py.
The servers run until every host's script has ended: they are services of the phase, and `train` ends them with it.
"""

from pathlib import Path

import msgspec

import toolkit
from toolkit.job.job import Job
from toolkit.job.plan import Listens, Plan, ProcessSpec
from toolkit.train.launchers import script
from toolkit.train.launchers.environment import stop_policy
from toolkit.train.launchers.multi_worker_mirrored import server_address, tf_config_text, worker

PORT = 2222
SERVER_PORT = 2223
# A script that has lost its servers waits for them in a call that no signal interrupts.
FAILURE_S = 5.0
SERVER = Path(toolkit.__file__).parent / "rank" / "hook" / "parameter_server.py"


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for one task and one server on each host; if the user sets TF_CONFIG, without the server."""
    index = job.cluster.rank
    tf_config = (
        tf_config_text(cluster(job), "worker", index - 1) if index else tf_config_text(cluster(job), "master", 0)
    )
    changed = worker(script.plan(job, run_folder), job, "parameter_server", tf_config)
    if "TF_CONFIG" in job.environ:
        return msgspec.structs.replace(changed, notes=(*changed.notes, "TF_CONFIG is the job's own: no ps is started"))
    changed = changed.with_main(stop=msgspec.structs.replace(changed.phase.main.stop, failure_s=FAILURE_S))
    phase = msgspec.structs.replace(
        changed.phase,
        services=(server(job),),
        serves_all=True,
        leads=job.cluster.is_leader,
        served=_served(job),
    )
    return msgspec.structs.replace(changed, phase=phase)


def cluster(job: Job) -> dict[str, list[str]]:
    """Return the tasks of all hosts."""
    hosts = job.cluster.taking_part
    tasks = [server_address(job, host, PORT, index) for index, host in enumerate(hosts)]
    servers = [server_address(job, host, SERVER_PORT, len(hosts) + index) for index, host in enumerate(hosts)]
    return {"master": tasks[:1], "ps": servers, "worker": tasks[1:]}


def server(job: Job) -> ProcessSpec:
    """Return this host's server. It sees no GPU: they are the script's."""
    environ = {"TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONUNBUFFERED": "1", **job.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return ProcessSpec(
        name="ps",
        argv=(job.interpreter, str(SERVER)),
        environ={**environ, "TF_CONFIG": tf_config_text(cluster(job), "ps", job.cluster.rank)},
        cwd=job.folders.output_data,
        stop=stop_policy(job),
    )


def _served(job: Job) -> Listens | None:
    if job.cluster.is_leader or job.settings.link == "on":
        return None
    address, _, port = cluster(job)["master"][0].rpartition(":")
    return Listens(host=job.cluster.leader, address=address, port=int(port), within_s=0)
