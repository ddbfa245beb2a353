"""Manifests against the schemas of those who read them (tests/data/schemas), and what they say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit import settings
from toolkit.cli.render import manifest
from toolkit.commands.render.compose import folders
from toolkit.commands.render.inside import Choices, Toleration, document
from toolkit.errors import ContractError
from toolkit.job.file.job_file import JobFile, check_job_file
from toolkit.job.file.options import Origin, from_file
from toolkit.job.machine import Machine
from toolkit.log import Log
from toolkit.train.platforms.place import expand_hosts
from toolkit.train.platforms.table import detect

yaml = pytest.importorskip("yaml", reason="PyYAML is not here: run scripts/setup")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not here: run scripts/setup")

SCHEMAS = Path(__file__).parents[2] / "data/schemas"
DEFINITIONS = {
    "Job": "kubernetes-1.37.json#/definitions/io.k8s.api.batch.v1.Job",
    "Service": "kubernetes-1.37.json#/definitions/io.k8s.api.core.v1.Service",
    "ConfigMap": "kubernetes-1.37.json#/definitions/io.k8s.api.core.v1.ConfigMap",
    "JobSet": "jobset-v1alpha2.json#/definitions/jobset.v1alpha2.JobSet",
}
SMALL = 'script = "train.py"\nname = "digits"\n'
LARGE = """
script = "src/train.py"
source = "."
name = "Digits-2026"
hosts = 3
processes-per-host = 8
distribution = "torch_distributed"
checkpoints = "kept"
max-run = "90m"

[hyperparameter]
epochs = 5
note = "costs $5, or ${five}"

[channel]
train = "/data/train"
test = "/data/test:FastFile"

[metric]
loss = "loss=([0-9.]+)$"

[env]
NCCL_DEBUG = "INFO"
"""
GROUPS = """
script = "train.py"
name = "mixed"
distribution = { torch_distributed = { enabled = true }, instance_groups = ["gpu"] }

[[instance_groups]]
name = "cpu"
hosts = 1
instance_type = "ml.c5.xlarge"

[[instance_groups]]
name = "gpu"
hosts = 2
instance_type = "ml.p4d.24xlarge"
"""
CLAIMS = {
    "train": "data/digits",
    "test": "held-out",
    "model": "results/team",
    "output": "results/team",
    "checkpoints": "results",
}
FULL = Choices(image="localhost/train:1", gpus=8, shm="16Gi", claims=CLAIMS, notice_s=300)
PLAIN = Choices(image="localhost/train:1")


def asked_in(text: str) -> JobFile:
    file = Path("/src/job.toml")
    return check_job_file(from_file(text, file), Origin(where=str(file)), folder=Path("/shared"), stamp="now")


def rendered(kind: str, text: str, choices: Choices) -> list[dict[str, Any]]:
    """Return the documents of the manifest, read back from its YAML."""
    resource = manifest(kind, asked_in(text), choices, Path("/src/job.toml"))
    return list(yaml.safe_load_all(resource))


def validate(instance: dict[str, Any], reference: str) -> None:
    """Check *instance*; what a schema refers to in another file of the folder is found there."""
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    files = [(path.name, json.loads(path.read_bytes())) for path in SCHEMAS.glob("*.json")]
    resources = [(name, Resource.from_contents(content, default_specification=DRAFT202012)) for name, content in files]
    registry = Registry().with_resources(resources)
    jsonschema.Draft202012Validator({"$ref": reference}, registry=registry).validate(instance)


@pytest.mark.parametrize("kind", ["job", "jobset"])
@pytest.mark.parametrize(("text", "choices"), [(SMALL, PLAIN), (LARGE, FULL)])
def test_kubernetes_takes_every_document(kind: str, text: str, choices: Choices) -> None:
    documents = rendered(kind, text, choices)

    for item in documents:
        validate(item, DEFINITIONS[item["kind"]])
    assert [document["kind"] for document in documents][-1] == {"job": "Job", "jobset": "JobSet"}[kind]


def test_the_schemas_refuse_what_is_wrong() -> None:
    resource = rendered("jobset", LARGE, FULL)[-1]
    job = resource["spec"]["replicatedJobs"][0]["template"]["spec"]
    wrong: list[tuple[dict[str, Any], str, Any]] = [
        (resource["spec"], "replicas", 3),
        (resource["spec"]["failurePolicy"]["rules"][0], "action", "GiveUp"),
        (job, "completionmode", "Indexed"),
        (job["template"]["spec"], "restartPolicy", 5),
    ]

    for holder, key, value in wrong:
        original = dict(holder)
        holder[key] = value
        with pytest.raises(jsonschema.ValidationError):
            validate(resource, DEFINITIONS["JobSet"])
        holder.clear()
        holder.update(original)
    validate(resource, DEFINITIONS["JobSet"])


@pytest.mark.parametrize(("text", "choices"), [(SMALL, PLAIN), (LARGE, FULL), (GROUPS, PLAIN)])
def test_compose_takes_the_project(text: str, choices: Choices) -> None:
    (project,) = rendered("compose", text, choices)

    validate(project, "compose-spec.json")


def test_instance_groups_are_replicated_jobs_of_one_set_and_agree_on_their_hosts() -> None:
    resource = rendered("jobset", GROUPS, PLAIN)[-1]

    validate(resource, DEFINITIONS["JobSet"])
    jobs = resource["spec"]["replicatedJobs"]
    assert [(job["name"], job["template"]["spec"]["completions"]) for job in jobs] == [("cpu", 1), ("gpu", 2)]
    lists = {value_of(job["template"]["spec"], "TOOLKIT_HOSTS") for job in jobs}
    assert lists == {"mixed-cpu-0-0.mixed,mixed-gpu-0-[0-1].mixed"}
    assert [job["template"]["spec"]["template"]["spec"]["nodeSelector"] for job in jobs] == [
        {"node.kubernetes.io/instance-type": "ml.c5.xlarge"},
        {"node.kubernetes.io/instance-type": "ml.p4d.24xlarge"},
    ]


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_every_pod_is_one_of_the_hosts_it_is_told_of(kind: str) -> None:
    resource = rendered(kind, LARGE, FULL)[-1]

    job = resource["spec"] if kind == "job" else resource["spec"]["replicatedJobs"][0]["template"]["spec"]
    hosts = expand_hosts(value_of(job, "TOOLKIT_HOSTS"), "TOOLKIT_HOSTS")
    host_name = value_of(job, "TOOLKIT_HOST")
    assert [host_name.replace("$(JOB_COMPLETION_INDEX)", str(index)) for index in range(job["completions"])] == list(
        hosts
    )
    names = [entry["name"] for entry in container(job)["env"]]
    assert names.index("JOB_COMPLETION_INDEX") < names.index("TOOLKIT_HOST")


def test_pods_of_a_job_find_each_other_by_its_service() -> None:
    _, service, job = rendered("job", LARGE, FULL)

    name = job["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == name == "digits-2026"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert value_of(job["spec"], "TOOLKIT_HOSTS") == f"{name}-[0-2].{name}"


def test_a_job_alone_needs_no_service_and_no_list_of_hosts() -> None:
    documents = rendered("job", SMALL, PLAIN)

    assert [document["kind"] for document in documents] == ["ConfigMap", "Job"]
    assert "TOOLKIT_HOSTS" not in [entry["name"] for entry in container(documents[-1]["spec"])["env"]]


def test_the_grace_of_the_pod_is_the_one_that_train_is_told() -> None:
    job = rendered("job", LARGE, FULL)[-1]["spec"]

    assert str(job["template"]["spec"]["terminationGracePeriodSeconds"]) == value_of(job, "TOOLKIT_STOP_WITHIN_S")
    assert job["activeDeadlineSeconds"] == 5400


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_a_pod_that_is_killed_as_a_whole_ends_with_its_last_lines_as_message(kind: str) -> None:
    resource = rendered(kind, SMALL, PLAIN)[-1]["spec"]
    job = resource if kind == "job" else resource["replicatedJobs"][0]["template"]["spec"]

    assert container(job)["terminationMessagePath"] == str(settings.Settings().termination_log)
    assert container(job)["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("code", "ends_the_job"), [(1, True), (78, True), (70, True), (137, True), (93, True), (75, False), (143, False)]
)
def test_a_pod_is_tried_again_only_where_its_exit_code_says_it_helps(code: int, ends_the_job: bool) -> None:
    rules = rendered("job", LARGE, FULL)[-1]["spec"]["podFailurePolicy"]["rules"]

    (by_code,) = [rule for rule in rules if "onExitCodes" in rule]
    assert (by_code["action"], by_code["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    assert (code not in by_code["onExitCodes"]["values"]) == ends_the_job


def test_results_of_each_host_have_a_folder_of_their_own() -> None:
    job = rendered("job", LARGE, FULL)[-1]["spec"]

    mounts = {mount["mountPath"]: mount for mount in container(job)["volumeMounts"]}
    assert mounts["/opt/ml/model"]["subPathExpr"] == "team/digits-2026/$(JOB_COMPLETION_INDEX)/model"
    assert mounts["/opt/ml/input/data/train"] == {
        "name": "claim-0",
        "mountPath": "/opt/ml/input/data/train",
        "subPath": "digits",
        "readOnly": True,
    }
    assert "readOnly" not in mounts["/opt/ml/checkpoints"]


def test_the_document_says_in_a_container_what_the_file_says_here(tmp_path: Path) -> None:
    job_file = asked_in(LARGE)
    (tmp_path / "input/config").mkdir(parents=True)
    (tmp_path / "input/config/job.json").write_text(json.dumps(document(job_file)))
    environ = {"TOOLKIT_BASE": str(tmp_path), "TOOLKIT_HOSTS": "a,b,c", "TOOLKIT_HOST": "b"}

    machine = Machine(cpus=1, cpus_total=1, memory_bytes=1)
    job = detect(environ).read(environ, settings.read(environ), machine, Log(), interpreter="/python")

    assert (job.spec.name, job.spec.entry, job.folders.code) == ("Digits-2026", "src/train.py", Path("/opt/ml/code"))
    assert job.spec.hyperparameters == job_file.hyperparameters
    assert job.spec.metric_definitions == job_file.metric_definitions
    assert (job.strategy.name, job.processes_per_host) == ("torch_distributed", 8)
    assert {channel.name: str(channel.folder) for channel in job.spec.channels} == {
        "train": "/opt/ml/input/data/train",
        "test": "/opt/ml/input/data/test",
    }
    assert job.environ["NCCL_DEBUG"] == "INFO"


def test_a_channel_in_storage_is_left_for_train_to_fetch() -> None:
    text = SMALL + '[channel]\ntrain = "s3://bucket/digits"\n'

    (project,) = rendered("compose", text, PLAIN)
    job = rendered("job", text, PLAIN)[-1]["spec"]
    claimed = rendered("job", text, Choices(image="x", claims={"train": "digits"}))[-1]["spec"]

    assert document(asked_in(text))["channel"] == {"train": "s3://bucket/digits"}
    targets = [volume["target"] for volume in project["services"]["algo-1"]["volumes"]]
    assert "/opt/ml/input/data/train" not in targets
    assert "/opt/ml/input/data/train" not in [mount["mountPath"] for mount in container(job)["volumeMounts"]]
    assert "/opt/ml/input/data/train" in [mount["mountPath"] for mount in container(claimed)["volumeMounts"]]


def test_composes_own_variables_do_not_change_the_document() -> None:
    (project,) = rendered("compose", LARGE, FULL)

    content = project["configs"]["job"]["content"]
    assert json.loads(content.replace("$$", "$")) == document(asked_in(LARGE))
    assert "$" not in content.replace("$$", "")


def test_compose_binds_what_the_job_needs_and_leaves_results_beside_the_job() -> None:
    (project,) = rendered("compose", LARGE, FULL)

    service = project["services"]["algo-2"]
    binds = {volume["target"]: volume for volume in service["volumes"]}
    assert binds["/opt/ml/code"]["source"] == "/src"
    assert binds["/opt/ml/code"]["read_only"]
    assert binds["/opt/ml/input/data/test"]["source"] == "/data/test"
    assert binds["/opt/ml/model"]["source"] == "/shared/jobs/Digits-2026/hosts/algo-2/model"
    assert binds["/opt/ml/checkpoints"]["source"] == "/src/kept"
    assert service["environment"]["TOOLKIT_HOSTS"] == "algo-1,algo-2,algo-3"
    assert service["shm_size"] == "16gb"


def test_composes_containers_run_as_the_person_who_renders() -> None:
    (project,) = rendered("compose", LARGE, PLAIN)
    (persons,) = rendered("compose", LARGE, Choices(image="localhost/train:1", user="1000:1001"))

    service = persons["services"]["algo-2"]
    validate(persons, "compose-spec.json")
    assert (service["user"], service["environment"]["HOME"]) == ("1000:1001", "/tmp")
    assert "user" not in project["services"]["algo-2"]
    binds = {volume["source"] for volume in service["volumes"] if not volume.get("read_only")}
    assert binds == {folder for folder in folders(asked_in(LARGE)) if "/algo-2/" in folder or folder == "/src/kept"}


def test_a_batch_script_says_what_slurm_is_to_give() -> None:
    text = manifest("slurm", asked_in(LARGE), FULL, Path("/src/my jobs/job.toml"))

    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in ("nodes=3", "ntasks-per-node=1", "time=90", "gpus-per-node=8", "signal=USR1@300", "requeue"):
        assert option in options
    assert "export TOOLKIT_JOB='/src/my jobs/job.toml'" in text
    assert "export TOOLKIT_BASE='/src/my jobs/jobs'/{job}/{host}" in text
    assert "exclusive" in options and "mem=0" in options, "a host of the job is a node"
    assert (
        "--container-image=localhost/train:1 --container-mounts=/data/test:/data/test,/data/train:/data/train,/src:"
        in text
    )
    assert "mkdir -p '/src/my jobs/jobs'\n" in text


def test_a_batch_script_asks_for_a_part_of_a_node_where_it_is_said() -> None:
    choices = Choices(cpus=16, memory="64Gi", gpus=1)

    text = manifest("slurm", asked_in(SMALL), choices, Path("/src/job.toml"))

    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"cpus-per-task=16", "mem=64G", "gpus-per-node=1"} <= set(options)
    assert not {"exclusive", "mem=0"} & set(options)
    assert "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --cpus-per-task=16 train\n" in text
    assert "--container" not in text and "mkdir" not in text


def test_each_host_of_a_compose_project_has_gpus_of_its_own() -> None:
    (project,) = rendered("compose", LARGE, Choices(image="x", gpus=2, cpus=4, memory="8Gi"))

    validate(project, "compose-spec.json")
    services = [project["services"][host] for host in ("algo-1", "algo-2", "algo-3")]
    devices = [document["deploy"]["resources"]["reservations"]["devices"] for document in services]
    assert [document[0]["device_ids"] for document in devices] == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert all("count" not in document[0] for document in devices)
    assert [(document["cpus"], document["mem_limit"]) for document in services] == [(4, "8gb")] * 3


EVERYTHING = Choices(
    image="registry/train:1",
    cpus=16,
    gpus=8,
    memory="128Gi",
    user="1000:2000",
    suffix="ab12cd",
    node_labels={"pool": "a100", "node.kubernetes.io/instance-type": "p4d"},
    tolerations=(Toleration(key="reserved", value="train", effect="NoSchedule"), Toleration(key="spot")),
    secrets=("wandb", "s3"),
    pull_secrets=("registry",),
    service_account="trainer",
)


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_pods_say_what_a_cluster_wants_to_know(kind: str) -> None:
    documents = rendered(kind, GROUPS if kind == "jobset" else SMALL + "hosts = 2\n", EVERYTHING)

    for manifest_document in documents:
        validate(manifest_document, DEFINITIONS[manifest_document["kind"]])
    resource = documents[-1]
    assert resource["metadata"]["name"].endswith("-ab12cd")
    assert resource["spec"]["ttlSecondsAfterFinished"] == 604_800
    job = resource["spec"] if kind == "job" else resource["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod, main = job["template"]["spec"], container(job)
    assert main["resources"] == {
        "requests": {"nvidia.com/gpu": 8, "memory": "128Gi", "cpu": 16},
        "limits": {"nvidia.com/gpu": 8, "memory": "128Gi"},
    }
    assert main["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsGroup": 2000,
        "fsGroup": 2000,
        "runAsNonRoot": True,
    }
    assert pod["nodeSelector"] == {"pool": "a100", "node.kubernetes.io/instance-type": "p4d"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "reserved", "operator": "Equal", "value": "train", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert main["envFrom"] == [{"secretRef": {"name": "wandb"}}, {"secretRef": {"name": "s3"}}]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("trainer", True)
    assert main["livenessProbe"]["exec"]["command"] == ["toolkit", "health"]


def test_pods_without_choices_have_the_images_user_and_no_token_of_the_cluster() -> None:
    job = rendered("job", SMALL, PLAIN)[-1]["spec"]

    pod, main = job["template"]["spec"], container(job)
    assert pod["automountServiceAccountToken"] is False
    assert main["securityContext"] == {"allowPrivilegeEscalation": False}
    assert not {"nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName"} & set(pod)
    assert not {"resources", "envFrom"} & set(main)


def test_a_long_name_leaves_room_for_the_runs_suffix() -> None:
    text = SMALL.replace("digits", "x" * 60)

    documents = rendered("job", text, Choices(image="x", suffix="ab12cd"))

    assert {document["metadata"]["name"].removesuffix("-job") for document in documents} == {"x" * 33 + "-ab12cd"}


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"), [(75, 0, True), (75, 2, True), (75, 3, False), (7, 0, False)]
)
def test_a_batch_script_asks_for_another_try_at_most_three_times(
    tmp_path: Path, code: int, restarts: int, requeued: bool
) -> None:
    for name, text in {"srun": f"exit {code}", "scontrol": 'echo "$@" >> asked; exit 0', "sleep": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": str(restarts)}

    text = manifest("slurm", asked_in(SMALL), Choices(), Path("/src/job.toml"))
    done = subprocess.run(["bash"], input=text, text=True, env=environ, cwd=tmp_path, timeout=30)

    assert done.returncode == code
    assert (tmp_path / "asked").exists() == requeued
    assert not requeued or (tmp_path / "asked").read_text() == "requeue 12\n"


@pytest.mark.parametrize(
    ("kind", "text", "choices", "reason"),
    [
        ("job", SMALL, Choices(), "--image: expected the image"),
        ("compose", SMALL, Choices(), "--image: expected the image"),
        ("job", GROUPS, PLAIN, "expected one instance group, found 2. Pods of one Job are all alike: use a jobset."),
        ("slurm", GROUPS, PLAIN, "expected one instance group, found 2"),
        ("job", LARGE, PLAIN, "--claim: expected a claim for train, found none. Name the persistent volume claim"),
        ("job", SMALL, Choices(image="x", claims={"modle": "y"}), "--claim: expected one of code, model, output"),
        ("job", SMALL + "[channel]\na = '/a:Pipe'\n", PLAIN, "channel a: expected a folder that every host sees whole"),
        ("slurm", SMALL + "[channel]\na = '/a:ShardedByS3Key'\n", PLAIN, "found ShardedByS3Key"),
        ("slurm", SMALL + "[channel]\na = '/a,b'\n", PLAIN, "--image: expected a path without ':' and ','"),
        ("compose", SMALL + 'requirements = "r.txt"\n', PLAIN, "requirements: expected /src/requirements.txt"),
    ],
)
def test_what_a_manifest_cannot_say_is_refused_with_the_way_out(
    kind: str, text: str, choices: Choices, reason: str
) -> None:
    with pytest.raises(ContractError) as caught:
        manifest(kind, asked_in(text), choices, Path("/src/job.toml"))

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Train_it!", "train-it"), ("2026-digits", "job-2026-digits"), ("a" * 63, "a" * 40), ("x" * 39 + "-y", "x" * 39)],
)
def test_any_name_of_a_job_becomes_one_that_pods_may_have(name: str, expected: str) -> None:
    import msgspec

    job_file = asked_in(SMALL)
    job_file = msgspec.structs.replace(job_file, name=name)

    job = manifest("job", job_file, PLAIN, Path("/src/job.toml"))

    assert list(yaml.safe_load_all(job))[-1]["metadata"]["name"] == expected


def container(job: dict[str, Any]) -> dict[str, Any]:
    (job_container,) = job["template"]["spec"]["containers"]
    assert isinstance(job_container, dict)
    return job_container


def value_of(job: dict[str, Any], name: str) -> str:
    (entry,) = [entry for entry in container(job)["env"] if entry["name"] == name]
    return str(entry["value"])


def test_nothing_but_the_schemas_tests_needs_pyyaml() -> None:
    """Without it manifests are JSON."""
    text = (
        "import sys; sys.modules['yaml'] = None\n"
        "from toolkit.commands.render.text import text\n"
        "print(text([{'a': 1}, {'b': 'x\\ny'}]), end='')\n"
    )

    output = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout

    assert [json.loads(part) for part in output.split("---\n")] == [{"a": 1}, {"b": "x\ny"}]
    assert list(yaml.safe_load_all(output)) == [{"a": 1}, {"b": "x\ny"}]


def test_rules_of_the_source_are_named_where_the_code_lies_and_others_refused() -> None:
    assert document(asked_in(SMALL + 'rules = "watch/rules.toml"\n'))["rules"] == "/opt/ml/code/watch/rules.toml"
    with pytest.raises(ContractError, match="rules: expected a file in the source folder"):
        document(asked_in(SMALL + 'rules = "../rules.toml"\n'))


def test_two_groups_never_write_into_one_folder() -> None:
    resource = rendered("jobset", GROUPS, Choices(image="x", claims={"model": "results", "output": "results/team"}))[-1]

    folders = {
        mount["subPathExpr"]
        for job in resource["spec"]["replicatedJobs"]
        for mount in container(job["template"]["spec"])["volumeMounts"]
        if "subPathExpr" in mount
    }
    assert folders == {
        f"{above}mixed/{group}/$(JOB_COMPLETION_INDEX)/{folder}"
        for group in ("cpu", "gpu")
        for above, folder in (("", "model"), ("team/", "output"))
    }


@pytest.mark.parametrize("names", [("CPU", "cpu"), ("---", "b"), ("trn-for-attention-1", "trn-for-attention-2")])
def test_groups_that_would_have_one_name_are_refused(names: tuple[str, str]) -> None:
    text = GROUPS.replace('"cpu"', f'"{names[0]}"').replace('"gpu"', f'"{names[1]}"')

    with pytest.raises(ContractError, match="instance-groups: expected names that differ"):
        rendered("jobset", text, PLAIN)


@pytest.mark.parametrize("word", ["y", "N", "1e3", "12e4567", "0o17", "+1e5", ".5e1", "1_000", "on"])
def test_every_reader_of_yaml_takes_text_for_text(word: str) -> None:
    manifest_text = manifest(
        "job", asked_in(SMALL), Choices(image="x", node_labels={"pool": word}), Path("/src/job.toml")
    )

    assert f"pool: '{word}'\n" in manifest_text


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_any_claim_is_mounted_as_a_volume_of_a_valid_name(kind: str) -> None:
    names = ["data.v1", *("c" * 60 + end for end in "12"), "d" * 253]
    text = SMALL + "[channel]\n" + "".join(f'c{index} = "/x"\n' for index in range(len(names)))

    documents = rendered(kind, text, Choices(image="x", claims={f"c{index}": name for index, name in enumerate(names)}))

    spec = documents[-1]["spec"]
    pod = (spec if kind == "job" else spec["replicatedJobs"][0]["template"]["spec"])["template"]["spec"]
    claimed = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"][2:]}
    mounted = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"][2:]}
    assert [claimed[mounted[f"/opt/ml/input/data/c{index}"]] for index in range(len(names))] == names
    assert all(re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in claimed)


@pytest.mark.parametrize("claim", ["/x", "Data", "a_b", "a..b", "a/../b", "a/..", "a b", "d" * 254])
def test_what_is_no_claim_is_refused(claim: str) -> None:
    with pytest.raises(ContractError, match="expected train=CLAIM or train=CLAIM/FOLDER"):
        rendered("job", SMALL + '[channel]\ntrain = "/x"\n', Choices(image="x", claims={"train": claim}))


@pytest.mark.parametrize("name", ["model", "code", "output", "checkpoints"])
def test_a_channel_named_as_a_folder_of_results_is_a_channel_still(name: str) -> None:
    text = SMALL + f'[channel]\n{name} = "/earlier"\n'

    with pytest.raises(ContractError, match=f"expected a claim for channel.{name}, found none"):
        rendered("job", text, Choices(image="x", claims={name: "results"}))
    claims = {name: "results", f"channel.{name}": "earlier/one"}
    job = rendered("job", text, Choices(image="x", claims=claims))[-1]["spec"]

    mounts = {mount["mountPath"]: mount for mount in container(job)["volumeMounts"]}
    assert mounts[f"/opt/ml/input/data/{name}"] == {
        "name": "claim-0",
        "mountPath": f"/opt/ml/input/data/{name}",
        "subPath": "one",
        "readOnly": True,
    }
    assert mounts[f"/opt/ml/{name}"]["name"] == "claim-1"


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_a_file_system_is_mounted_with_the_access_that_the_job_asks_for(access: str) -> None:
    text = SMALL + f'[channel.train]\npath = "/mnt/fsx"\nfile-system = "{access}"\n'

    job = rendered("job", text, Choices(image="x", claims={"train": "fsx"}))[-1]["spec"]
    (project,) = rendered("compose", text, PLAIN)

    mount_path = "/opt/ml/input/data/train"
    (mount,) = [
        volume_mount for volume_mount in container(job)["volumeMounts"] if volume_mount["mountPath"] == mount_path
    ]
    (volume,) = [
        service_volume
        for service_volume in project["services"]["algo-1"]["volumes"]
        if service_volume["target"] == mount_path
    ]
    assert (mount.get("readOnly", False), volume.get("read_only", False)) == ((access == "ro"),) * 2


def test_what_the_job_file_says_of_the_monitor_is_in_the_document() -> None:
    job_document = document(asked_in(SMALL + "disable-profiler = true\n[profiler-rules]\nGPUMemoryIncrease = {}\n"))

    assert (job_document["monitor"], job_document["profiler-rules"]) == (False, {"GPUMemoryIncrease": {}})


@pytest.mark.parametrize("value", ["nan", "inf", "[1, nan]", "{a = -inf}"])
def test_a_number_that_json_has_not_is_refused_where_train_would_refuse_it(value: str) -> None:
    with pytest.raises(ContractError, match="hyperparameter x: expected a finite number"):
        document(asked_in(SMALL + f"[hyperparameter]\nx = {value}\n"))
