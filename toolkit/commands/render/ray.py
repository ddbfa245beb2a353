"""Pure: a job as the driver of a Ray job, which starts one `train` on each of the job's nodes.

Ray's own jobs run their entry point on one node. So the driver reserves the hosts in a placement group, starts `train`
in an actor on each, and ends with its exit code. https://docs.ray.io/en/latest/cluster/running-applications/job-submission
"""

import json
from typing import Any

from toolkit.commands.render.inside import (
    CODE,
    RETRIED,
    RETRIES,
    Choices,
    check_hosts_have,
    document,
    lower_name,
    mebibytes,
)
from toolkit.errors import ContractError
from toolkit.exit_codes import TEMPORARY_FAILURE
from toolkit.job.file.job_file import JobFile

DRIVER = '''\
"""The driver of a Ray job: one `train` on each of {count} nodes, which need the toolkit and what the job imports.

    ray job submit --working-dir SOURCE -- python3 FILE

SOURCE is the folder of the script, with this file in it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

JOB = json.loads(r"""{job}""")
HOSTS = {count}
# What each host of the job is given.
RESOURCES = {resources}
ENVIRONMENT = {environment}
# After these exit codes the job is started again: a host vanished or was not reached, or was asked to stop.
RETRIED = {retried}
RETRIES = {retries}
LOST = {lost}
USER_ERROR = {user_error}

stopped = False


@ray.remote(max_restarts=0, max_concurrency=4)
class Host:
    """A host of the job: `train` in a folder of its own."""

    process = None
    is_stopping = False

    def address(self):
        """Return the node's address, and a free port there."""
        with socket.socket() as found:
            found.bind(("", 0))
            return ray.util.get_node_ip_address(), str(found.getsockname()[1])

    def train(self, rank, address, port):
        """Return the exit code of `train`."""
        source = os.getcwd()  # The working directory of the Ray job.
        base = tempfile.mkdtemp(prefix=f"toolkit-{name}-{{rank}}-")
        config = os.path.join(base, "input", "config")
        os.makedirs(config)
        paths = {{option: os.path.join(source, JOB[option]) for option in ("script", "rules") if option in JOB}}
        with open(os.path.join(config, "job.json"), "w") as file:
            json.dump(dict(JOB, source=source, **paths), file)
        environ = dict(os.environ, **ENVIRONMENT, TOOLKIT_PLATFORM="plain", TOOLKIT_BASE=base)
        if HOSTS > 1:
            environ.update(MASTER_ADDR=address, MASTER_PORT=port, NODE_RANK=str(rank), NNODES=str(HOSTS))
        print(f"host {{rank}}: train leaves its results in {{base}}", flush=True)
        try:
            self.process = subprocess.Popen(["train"], cwd=source, env=environ)
        except FileNotFoundError:
            print(f"host {{rank}}: expected train on PATH, found none. Install the toolkit on the nodes.", flush=True)
            return USER_ERROR
        if self.is_stopping:
            self.process.terminate()
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def stop(self):
        """Ask `train` to end."""
        self.is_stopping = True
        if self.process is not None:
            self.process.terminate()


def run_once():
    """Return the exit code of the job, from the first host that ended with one; LOST if a node was lost."""
    group = placement_group([RESOURCES] * HOSTS, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    try:
        hosts = []
        for rank in range(HOSTS):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            needs = {{"num_cpus": RESOURCES["CPU"], "num_gpus": RESOURCES.get("GPU", 0)}}
            hosts.append(Host.options(scheduling_strategy=place, **needs).remote())
        address, port = ray.get(hosts[0].address.remote())
        waiting = [host.train.remote(rank, address, port) for rank, host in enumerate(hosts)]
        codes = []
        told = False
        while waiting:
            ended, waiting = ray.wait(waiting, timeout=0.5)
            codes += ray.get(ended)
            if stopped and not told:
                told = True
                for host in hosts:
                    host.stop.remote()
        return next((code for code in codes if code), 0)
    except RayError as error:
        print(f"a node was lost: {{error}}", file=sys.stderr)
        return LOST
    finally:
        remove_placement_group(group)


def stop(number, frame):
    """Note that the job is to end."""
    global stopped
    stopped = True


def main():
    """Return the exit code of the last attempt."""
    ray.init()
    signal.signal(signal.SIGTERM, stop)  # Ray has set a handler of its own.
    for left in reversed(range(1 + RETRIES)):
        code = run_once()
        if stopped or not left or code not in RETRIED:
            return code
        print(f"train ended with {{code}}: another attempt of {{left}}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
'''


def driver(job_file: JobFile, choices: Choices) -> str:
    """Return the driver's text. The nodes have the toolkit; the source is the Ray job's working directory.

    Raises:
        ContractError: the job asks for what Ray's nodes cannot have.
    """
    check_hosts_have(job_file)
    resources: dict[str, Any] = {"CPU": choices.cpus or 1}
    if choices.gpus:
        resources["GPU"] = choices.gpus
    if choices.memory:
        resources["memory"] = mebibytes(choices.memory) * 1024**2
    job = document(job_file)
    job.pop("source")  # The driver names the folder where Ray has put it.
    for option in {"script", "rules"} & set(job):
        job[option] = job[option].removeprefix(f"{CODE}/")
    return DRIVER.format(
        count=len(job_file.hosts),
        job=json.dumps(job, indent=2),  # In ASCII, so that the text has neither quotes of Python nor raw escapes.
        resources=repr(resources),
        environment=repr(dict(job_file.environment)),
        retried=repr(RETRIED),
        retries=RETRIES,
        lost=TEMPORARY_FAILURE,
        user_error=ContractError.exit_code,
        name=lower_name(job_file, 40),
    )
