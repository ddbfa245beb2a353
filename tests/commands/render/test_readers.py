"""Manifests as the tools themselves read them. `scripts/manifests` installs the tools and runs these tests."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolkit.cli.render import manifest
from toolkit.commands.render.inside import Choices
from toolkit.job.file.job_file import check_job_file
from toolkit.job.file.options import Origin, from_file

ROOT = Path(__file__).parents[3]
BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds") / "manifests"
# Each program gets a manifest's path and prints what the tool has read: {"hosts", "gpus" of each host, "retried", ...}.
SKY = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
print(json.dumps({
    "hosts": task.num_nodes,
    "gpus": sum((resources.accelerators or {}).values()),
    "retried": resources.job_recovery["recover_on_exit_codes"],
    "script": task.run,
    "variables": dict(task.envs),
}))
"""
DSTACK = """
import json, sys, yaml
from dstack._internal.core.models.configurations import DstackConfiguration
task = DstackConfiguration.model_validate(yaml.safe_load(open(sys.argv[1]))).root
gpu = task.resources.gpu
print(json.dumps({
    "hosts": task.nodes,
    "gpus": gpu.count.min if gpu and gpu.name else 0,
    "retried": [event.value for event in task.retry.on_events],
    "script": task.commands[0],
    "variables": dict(task.env),
}))
"""
BATCH = """
import json, sys, yaml
import botocore.session
from botocore.validate import validate_parameters
manifest = yaml.safe_load(open(sys.argv[1]))
model = botocore.session.get_session().get_service_model("batch")
shape = model.operation_model("RegisterJobDefinition").input_shape
validate_parameters(manifest, shape)
def check_words(value, shape):  # botocore leaves these to the service.
    if shape.type_name == "structure":
        for key, inner in value.items():
            check_words(inner, shape.members[key])
    elif shape.type_name == "list":
        for inner in value:
            check_words(inner, shape.member)
    elif getattr(shape, "enum", None):
        assert value in shape.enum, (value, shape.enum)
check_words(manifest, shape)
nodes = manifest.get("nodeProperties")
container = nodes["nodeRangeProperties"][0]["container"] if nodes else manifest["containerProperties"]
rules = manifest["retryStrategy"]["evaluateOnExit"]
print(json.dumps({
    "hosts": nodes["numNodes"] if nodes else 1,
    "gpus": sum(int(need["value"]) for need in container["resourceRequirements"] if need["type"] == "GPU"),
    "retried": [int(rule["onExitCode"]) for rule in rules if rule["action"] == "RETRY" and "onExitCode" in rule],
    "script": container["command"][2],
    "variables": {pair["name"]: pair["value"] for pair in container["environment"]},
}))
"""
TRAINJOB = """
import json, sys, yaml
from kubeflow_trainer_api import models
config, runtime, job = yaml.safe_load_all(open(sys.argv[1]))
read = models.TrainerV1alpha1TrainingRuntime.from_dict(runtime), models.TrainerV1alpha1TrainJob.from_dict(job)
assert [one.to_dict() for one in read] == [runtime, job], "a key that Trainer does not know"
(replicated,) = read[0].spec.template.spec.replicated_jobs
spec = replicated.template.spec
(container,) = spec.template.spec.containers
limits = container.resources.limits if container.resources else {}
(rule,) = [rule for rule in spec.pod_failure_policy.rules if rule.on_exit_codes]
print(json.dumps({
    "hosts": read[1].spec.trainer.num_nodes,
    "gpus": int(limits["nvidia.com/gpu"].actual_instance) if "nvidia.com/gpu" in limits else 0,
    "retried": rule.on_exit_codes.values if (rule.action, rule.on_exit_codes.operator) == ("FailJob", "NotIn") else [],
}))
"""
# A cluster of two nodes on this machine; submits the job of a folder and prints how it ended.
RAY = """
import json, sys, time
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient, JobStatus
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": True, "dashboard_port": 0})
cluster.add_node(num_cpus=1)
client = JobSubmissionClient("http://" + cluster.head_node.webui_url)
job = client.submit_job(entrypoint="python3 driver.py", runtime_env={"working_dir": sys.argv[1]})
deadline_s = time.monotonic() + 180
while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline_s:
    time.sleep(0.5)
ended = client.get_job_info(job)
print(json.dumps({"status": ended.status, "code": ended.driver_exit_code, "log": client.get_job_logs(job)}))
cluster.shutdown()
"""
FAILS = """
import os, sys, time
if os.environ["SM_CURRENT_HOST"] == "node-1":
    sys.exit(7)
time.sleep(60)
"""
READERS = {"sky": SKY, "dstack": DSTACK, "batch": BATCH, "trainjob": TRAINJOB}
INTERRUPTIONS = ["no-capacity", "interruption"]  # dstack cannot tell exit codes apart.

needs_bed = pytest.mark.skipif(not (BED / "sky/.ready").exists(), reason=f"no {BED}: run scripts/manifests")


def written(kind: str, folder: Path, *, hosts: int = 1, gpus: int = 0) -> Path:
    """Return the file of the manifest of a job in *folder*."""
    (folder / "train.py").write_text("print('trained')\n")
    file = folder / "job.toml"
    file.write_text(
        f'script = "train.py"\nname = "Digits"\nhosts = {hosts}\n[env]\nDATA_SEED = "0123"\n'
        + f"[hyperparameter]\nnote = {json.dumps(NOTE)}\n"
    )
    job_file = check_job_file(from_file(file.read_text(), file), Origin(where=str(file)), folder=folder, stamp="")
    choices = Choices(
        image="" if kind == "ray" else "localhost/train:1",
        gpus=gpus,
        gpu_type="A100" if gpus and kind in ("sky", "dstack") else "",
        cpus=1 if kind == "ray" else 4,
        memory="8Gi" if kind != "ray" else "",
    )
    path = folder / "manifest"
    path.write_text(manifest(kind, job_file, choices, file))
    return path


NOTE = 'it\'s "$5" or ${HOME} `or` \\n\nEND'


@needs_bed
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize("kind", READERS)
def test_the_tool_reads_from_its_manifest_what_the_job_file_says(
    kind: str, hosts: int, gpus: int, tmp_path: Path
) -> None:
    path = written(kind, tmp_path, hosts=hosts, gpus=gpus)

    found = read(kind, path)

    retried = INTERRUPTIONS if kind == "dstack" else [75, 143]
    assert (found["hosts"], found["gpus"], found["retried"]) == (hosts, gpus, retried)
    if kind != "trainjob":
        assert found["variables"]["DATA_SEED"] == "0123"
        assert ("MASTER_ADDR" in found["script"]) == (hosts > 1)


@needs_bed
@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("sky", "recover_on_exit_codes:", "recover_on_exit_code:"),
        ("dstack", "on_events:", "on_event:"),
        ("batch", "onExitCode:", "onExitCodes:"),
        ("trainjob", "podFailurePolicy:", "podFailurePolicies:"),
    ],
)
def test_the_tool_refuses_a_key_that_it_does_not_know(kind: str, right: str, wrong: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    text = path.read_text()
    assert right in text

    path.write_text(text.replace(right, wrong))

    with pytest.raises(subprocess.CalledProcessError):
        read(kind, path)


def read(kind: str, path: Path) -> dict[str, Any]:
    """Return what the tool itself reads in the manifest at *path*."""
    environ = {**os.environ, "HOME": str(path.parent), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    argv = (BED / kind / "bin/python", "-c", READERS[kind], path)
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_bed
@pytest.mark.parametrize(
    ("hosts", "script", "code"), [(1, "print('trained')", 0), (2, "print('trained')", 0), (2, FAILS, 7)]
)
def test_ray_runs_the_driver_and_its_job_ends_as_train_does(hosts: int, script: str, code: int, tmp_path: Path) -> None:
    written("ray", tmp_path, hosts=hosts).rename(tmp_path / "driver.py")
    (tmp_path / "train.py").write_text(script)
    programs = tmp_path.parent / f"{tmp_path.name}-bin"
    programs.mkdir()
    (programs / "train").symlink_to(ROOT / ".venv/bin/train")
    program = tmp_path.parent / f"{tmp_path.name}-ray.py"
    program.write_text(RAY)
    environ = {**os.environ, "PATH": f"{programs}:{BED}/ray/bin:{os.environ['PATH']}"}
    environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TOOLKIT_MONITOR": "off"}

    argv = (BED / "ray/bin/python", program, tmp_path)
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=240)

    assert done.returncode == 0, done.stderr[-3000:]
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["status"], end["code"]) == (("SUCCEEDED", 0) if code == 0 else ("FAILED", code)), end["log"][-3000:]
    assert code or end["log"].count("trained") == hosts
    assert end["log"].count("train leaves its results in") == hosts
