"""Manifests for SkyPilot, dstack, AWS Batch, Ray and Kubeflow Trainer: what they say, and what their scripts do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.render.test_manifests import CLAIMS, GROUPS, LARGE, SMALL, asked_in, container, rendered, validate
from toolkit.cli.render import manifest
from toolkit.commands.render.inside import Choices, document, mebibytes
from toolkit.errors import ContractError

ROOT = Path(__file__).parents[3]
IMAGE = Choices(image="localhost/train:1", cpus=4, memory="8Gi", shm="16Gi")
TWO = SMALL + "hosts = 2\n"
NOTE = 'it\'s "$5" or ${HOME} `or` \\n\nEND_OF_JOB_FILE\nend'
# What each tool tells the containers of a job of two hosts, and the leader's address in it.
TOLD = {
    "sky": ({"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2"}, "SKYPILOT_NODE_RANK"),
    "dstack": ({"DSTACK_MASTER_NODE_IP": "10.0.0.1", "DSTACK_NODES_NUM": "2"}, "DSTACK_NODE_RANK"),
    "batch": ({"AWS_BATCH_JOB_NUM_NODES": "2"}, "AWS_BATCH_JOB_NODE_INDEX"),
}


def script_of(kind: str, text: str) -> str:
    (described,) = rendered(kind, text, IMAGE)
    if kind == "batch":
        nodes = described.get("nodeProperties", {}).get("nodeRangeProperties")
        properties = nodes[0]["container"] if nodes else described["containerProperties"]
        shell, option, script = properties["command"]
        assert (shell, option) == ("sh", "-c")
        return str(script)
    return str(described["run"] if kind == "sky" else described["commands"][0])


def run_script(script: str, base: Path, environ: dict[str, str]) -> dict[str, str]:
    """Run *script* with *base* in place of /opt/ml and a `train` that only says its variables; return these."""
    programs = base / "bin"
    programs.mkdir(parents=True)
    (programs / "train").write_text(f"#!{sys.executable}\nimport json, os\nprint(json.dumps(dict(os.environ)))\n")
    (programs / "train").chmod(0o755)
    environ = {**environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    argv = ("sh", "-c", script.replace("/opt/ml", str(base)))
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_script_tells_train_the_place_that_the_tool_gives_it(kind: str, rank: str, tmp_path: Path) -> None:
    told, rank_name = TOLD[kind]
    environ = {**told, rank_name: rank}
    if (kind, rank) == ("batch", "1"):
        environ["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.0.1"

    found = run_script(script_of(kind, TWO), tmp_path, environ)

    assert (found["NODE_RANK"], found["NNODES"], found["TOOLKIT_PLATFORM"]) == (rank, "2", "plain")
    if (kind, rank) == ("batch", "0"):  # Batch does not tell the main node its address.
        own = subprocess.run(["hostname", "-i"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert found["MASTER_ADDR"] == own.split()[0]
    else:
        assert found["MASTER_ADDR"] == "10.0.0.1"


@pytest.mark.parametrize("kind", TOLD)
def test_the_script_writes_the_job_file_byte_for_byte(kind: str, tmp_path: Path) -> None:
    text = SMALL + f"[hyperparameter]\nnote = {json.dumps(NOTE)}\n"

    found = run_script(script_of(kind, text), tmp_path, {})

    content = (tmp_path / "input/config/job.json").read_text().replace(str(tmp_path), "/opt/ml")
    assert json.loads(content) == document(asked_in(text))
    assert "MASTER_ADDR" not in found


def test_two_hosts_train_together_by_the_script_of_a_batch_job(tmp_path: Path) -> None:
    """Start `train` twice on this machine, as the two nodes of a job."""
    script = script_of("batch", TWO)
    processes = []
    for rank in range(2):
        base = tmp_path / f"host-{rank}"
        (base / "code").mkdir(parents=True)
        (base / "code/train.py").write_text("import os\nprint('host', os.environ['SM_CURRENT_HOST'])\n")
        environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOOLKIT_BASE": str(base),
            "AWS_BATCH_JOB_NUM_NODES": "2",
            "AWS_BATCH_JOB_NODE_INDEX": str(rank),
            "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1",
        }
        argv = ("sh", "-c", script.replace("/opt/ml", str(base)))
        processes.append(
            subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )

    outputs = [process.communicate(timeout=120)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], outputs
    assert ["host node-0" in outputs[0], "host node-1" in outputs[1]] == [True, True]


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("gpus", [0, 8])
def test_the_runtime_of_a_train_job_retries_by_exit_code(hosts: int, gpus: int) -> None:
    text = SMALL + f'hosts = {hosts}\nmax-run = "90m"\n'

    config, runtime, job = rendered("trainjob", text, Choices(image="x", gpus=gpus, memory="8Gi"))

    validate(config, "kubernetes-1.37.json#/definitions/io.k8s.api.core.v1.ConfigMap")
    job_set = runtime["spec"]["template"]["spec"]
    named = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}, "spec": job_set}
    validate(named, "jobset-v1alpha2.json#/definitions/jobset.v1alpha2.JobSet")
    (replicated,) = job_set["replicatedJobs"]
    spec = replicated["template"]["spec"]
    (rule,) = [rule for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert (rule["action"], rule["onExitCodes"]) == (
        "FailJob",
        {"containerName": "node", "operator": "NotIn", "values": [75, 143]},
    )
    assert (replicated["name"], container(spec)["name"]) == ("node", "node")
    assert container(spec)["resources"]["limits"].get("nvidia.com/gpu", 0) == gpus
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["activeDeadlineSeconds"]) == (hosts, 5400)


def test_a_batch_job_is_retried_after_75_and_143_and_a_lost_machine_alone() -> None:
    (described,) = rendered("batch", TWO + 'max-run = "30s"\n', IMAGE)

    rules = [tuple(rule.items()) for rule in described["retryStrategy"]["evaluateOnExit"]]
    assert rules == [
        (("onExitCode", "75"), ("action", "RETRY")),
        (("onExitCode", "143"), ("action", "RETRY")),
        (("onStatusReason", "Host EC2*"), ("action", "RETRY")),
        (("onReason", "*"), ("action", "EXIT")),
    ]
    assert described["retryStrategy"]["attempts"] == 4
    assert described["timeout"] == {"attemptDurationSeconds": 60}, "Batch takes no less"


def test_sky_uploads_the_source_and_channels_and_asks_for_what_is_given() -> None:
    text = SMALL + '[channel]\ntrain = "/data/train"\ntest = "s3://bucket/test"\n'

    (described,) = rendered("sky", text, Choices(image="x", gpus=8, gpu_type="H100", cpus=64, memory="1Ti"))

    assert described["file_mounts"] == {"/opt/ml/code": "/src", "/opt/ml/input/data/train": "/data/train"}
    assert described["resources"] == {
        "image_id": "docker:x",
        "accelerators": {"H100": 8},
        "cpus": "64+",
        "memory": "1024+",
        "job_recovery": {"recover_on_exit_codes": [75, 143]},
    }


def test_the_driver_of_a_ray_job_is_a_program_that_holds_the_job() -> None:
    text = TWO + f"[hyperparameter]\nnote = {json.dumps(NOTE)}\n"

    program = manifest("ray", asked_in(text), Choices(gpus=2, cpus=3, memory="1Gi"), Path("/src/job.toml"))

    values: dict[str, Any] = {}
    lines = program[program.index("JOB = ") : program.index("stopped = False")]
    exec(compile(lines, "driver", "exec"), {"json": json}, values)
    compile(program, "driver", "exec")
    assert values["RESOURCES"] == {"CPU": 3, "GPU": 2, "memory": 1024**3}
    assert (values["HOSTS"], values["RETRIED"]) == (2, (75, 143))
    assert values["JOB"]["hyperparameter"] == {"note": NOTE}
    assert (values["JOB"]["script"], "source" in values["JOB"]) == ("train.py", False)


@pytest.mark.parametrize(
    ("script", "stops", "expected"),
    [("exit 7", False, 7), ("kill -9 $$", False, 137), ("exec sleep 60", True, 143), ("", False, 78)],
)
def test_a_host_of_a_ray_job_ends_as_train_does(
    script: str, stops: bool, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = manifest("ray", asked_in(SMALL), Choices(), Path("/src/job.toml"))
    class_text = program[program.index("class Host:") : program.index("def run_once")]
    values: dict[str, Any] = {"JOB": {"script": "train.py"}, "HOSTS": 1, "ENVIRONMENT": {}, "USER_ERROR": 78}
    exec(compile(f"import json, os, subprocess, tempfile\n{class_text}", "driver", "exec"), values)
    if script:
        (tmp_path / "train").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "train").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    host = values["Host"]()
    if stops:
        host.stop()  # Before the host has begun.
    assert host.train(0, "", "") == expected


@pytest.mark.parametrize("kind", ["sky", "dstack", "batch", "ray"])
def test_what_hosts_without_shared_folders_cannot_have_is_refused(kind: str) -> None:
    choices = Choices(cpus=4, memory="8Gi") if kind == "ray" else IMAGE
    for text, message in (
        (SMALL + 'checkpoints = "kept"\n', "checkpoints: expected none, found /src/kept"),
        (GROUPS, "expected one instance group, found 2"),
        (SMALL + '[channel]\ntrain = "/data"\n', "channel train: expected an address in storage, found /data"),
    ):
        if kind == "sky" and "channel" in message:
            continue
        with pytest.raises(ContractError, match=message):
            manifest(kind, asked_in(text), choices, Path("/src/job.toml"))


@pytest.mark.parametrize(
    ("kind", "choices", "message"),
    [
        ("sky", Choices(image="x", gpus=8), "--gpus: expected the type of the 8 GPUs"),
        ("batch", Choices(image="x", cpus=4), "--memory: expected it, since Batch places a job by it"),
        ("batch", Choices(image="x", memory="4Gi"), "--cpus: expected it"),
        ("dstack", Choices(), "--image: expected the image that has the toolkit"),
        ("trainjob", Choices(), "--image: expected the image that has the toolkit"),
    ],
)
def test_a_manifest_that_lacks_something_says_what(kind: str, choices: Choices, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        manifest(kind, asked_in(SMALL), choices, Path("/src/job.toml"))


def test_a_train_job_has_the_claims_of_a_job() -> None:
    _, runtime, _ = rendered("trainjob", LARGE, Choices(image="x", claims=CLAIMS))

    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    mounts = {mount["mountPath"] for mount in container(replicated["template"]["spec"])["volumeMounts"]}
    assert {"/opt/ml/input/data/train", "/opt/ml/checkpoints"} <= mounts


@pytest.mark.parametrize(("size", "expected"), [("512Mi", 512), ("64Gi", 65536), ("1Ti", 1024**2), ("1Ki", 1)])
def test_a_size_in_mebibytes(size: str, expected: int) -> None:
    assert mebibytes(size) == expected
