"""`toolkit check` on a base folder: what it prints, what it ends with, and that it leaves no trace."""

import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.train.base import ROOT, Base, Done

CHECK = (sys.executable, "-m", "toolkit.cli.main", "check")
HERE = "127.0.0.1"


def checked(base: Base, *words: str, **more: str) -> Done:
    return base.train(command=[*CHECK, *words], environ=base.environ(**more))


def read_check(base: Base, **more: str) -> dict[str, Any]:
    """Return the JSON document of a check."""
    document: dict[str, Any] = json.loads(checked(base, "--json", **more).stdout)
    return document


def row(document: dict[str, Any], name: str) -> dict[str, str]:
    rows = [check for check in document["checks"] if check["name"] == name]
    assert len(rows) == 1, (name, document["checks"])
    first_row: dict[str, str] = rows[0]
    return first_row


def two_hosts(base: Base, current: str = "algo-1", **hyperparameters: object) -> None:
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true", **hyperparameters})
    base.resources(("algo-1", "algo-2"), current, network_interface_name="lo")


def addresses(port: int = 0) -> dict[str, str]:
    variables = {"TOOLKIT_HOST_ADDRESSES": f"algo-1={HERE},algo-2={HERE}"}
    return {**variables, "MASTER_PORT": str(port or free_port())}


def traces(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return what a change would change: mode, size, and both times of every file and folder."""
    stats = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats.items()}


@pytest.mark.parametrize(
    ("last", "status", "expected"),
    [
        ("10.0.0.2", "ok", "algo-1 172.17.0.1 or 10.0.0.1, algo-2 172.17.0.1 or 10.0.0.2"),
        ("10.0.0.1", "warn", "two hosts have the same address (algo-1 172.17.0.1 or 10.0.0.1, algo-2"),
    ],
)
def test_hosts_may_share_one_of_their_addresses_and_not_all(base: Base, last: str, status: str, expected: str) -> None:
    """172.17.0.1 is the bridge of containers, which each machine has."""
    mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')
    if subprocess.run([*mount, "/etc/hosts", "true"], capture_output=True).returncode:
        pytest.skip("no mount of a process's own can be made here")
    two_hosts(base)
    base.program("")
    table = base.folder / "hosts"
    table.write_text(f"172.17.0.1 algo-1\n10.0.0.1 algo-1\n172.17.0.1 algo-2\n{last} algo-2\n")

    done = base.train(command=[*mount, str(table), *CHECK, "--json"], environ=base.environ())

    names = row(json.loads(done.stdout), "host names")
    assert names["status"] == status
    assert names["found"].startswith(expected)


def test_a_job_that_can_start_is_a_plan_a_table_and_status_0(base: Base) -> None:
    base.hyperparameters({"epochs": "3", "name": json.dumps("two words")})
    base.program("")

    done = checked(base)

    text = done.stdout.decode()
    assert (done.status, done.stderr) == (0, b"")
    assert text.startswith("launcher: script\nrole: alone\nworld size: 1\nphase: train\n")
    assert f"  argv: {sys.executable} train.py --epochs 3 --name 'two words'" in text
    assert f"  cwd: {base.code}\n" in text
    assert "  env: SM_HP_EPOCHS=3\n" in text
    assert f"ok code train.py (program) in {base.code} " in " ".join(text.split())
    assert " 0 fail\n" in text


def test_what_is_too_long_for_a_line_is_folded_or_cut(base: Base) -> None:
    base.hyperparameters({f"name-{number}": "x" * 40 for number in range(20)})
    base.program("")

    lines = checked(base).stdout.decode().splitlines()

    # A path alone is never broken: it could not be copied.
    assert [line for line in lines if len(line) > 100 and len(line.split()) > 3] == []
    assert any(line.startswith("  env: SM_HPS=") and line.endswith("...") for line in lines)


def test_json_has_all_of_it(base: Base) -> None:
    base.hyperparameters({"text": "x" * 500})
    base.program("")

    document = read_check(base)

    (phase,) = document["plan"]["phases"]
    assert (document["host"], document["job"], document["exit_code"]) == ("algo-1", "walk", 0)
    assert phase["argv"] == [sys.executable, "train.py", "--text", "x" * 500]
    assert phase["environment_added"]["SM_HP_TEXT"] == "x" * 500
    assert "PATH" not in phase["environment_added"]
    assert {check["status"] for check in document["checks"]} <= {"ok", "warn"}


@pytest.mark.torch
def test_torchrun_on_two_hosts_is_planned_and_looked_at(base: Base) -> None:
    two_hosts(base, sagemaker_mpi_num_of_processes_per_host="2")
    base.program("")
    port = free_port()

    document = read_check(base, **addresses(port))

    (phase,) = document["plan"]["phases"]
    assert (document["plan"]["role"], document["plan"]["world_size"]) == ("leader", 4)
    assert phase["argv"][1:5] == ["-m", "torch.distributed.run", "--nnodes", "2"]
    assert "torch 2" in row(document, "launcher")["found"]
    assert row(document, "port") == {
        "name": "port",
        "status": "ok",
        "found": f"{HERE}:{port} is free",
        "advice": "",
    }
    assert (row(document, "interface")["status"], document["exit_code"]) == ("ok", 0)


def test_a_follower_shows_what_it_would_wait_for(base: Base) -> None:
    two_hosts(base, "algo-2")
    base.program("")

    document = read_check(base, **addresses(1234), TOOLKIT_LINK="off")

    assert document["plan"]["phases"][0]["needs"] == [
        {"what": f"host algo-1 to listen on {HERE}:1234", "within_s": 900.0}
    ]
    assert row(document, "port")["found"] == f"{HERE}:1234 is for algo-1 to open"


def test_a_taken_port_fails(base: Base) -> None:
    two_hosts(base)
    base.program("")
    with socket.create_server((HERE, 0)) as other:
        document = read_check(base, **addresses(other.getsockname()[1]))

    assert row(document, "port")["status"] == "fail"
    assert "Address already in use" in row(document, "port")["found"]
    assert "MASTER_PORT" in row(document, "port")["advice"]
    assert document["exit_code"] == 78


def test_a_name_that_does_not_resolve_fails_and_is_named(base: Base) -> None:
    base.resources(("localhost", "no-such-host.invalid"), "localhost")
    base.program("")

    done = checked(base)

    assert done.status == 78
    assert "fail  host names   no-such-host.invalid does not resolve within 2 s\n" in done.stdout.decode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda base: base.document("resourceconfig.json", b'{"hosts": ["a"], "current_host": 3}'),
        lambda base: base.document("hyperparameters.json", b'{"a": '),
        lambda base: (base.config / "inputdataconfig.json").unlink(),
        lambda base: base.hyperparameters(program="nosuch.py"),
        lambda base: base.hyperparameters(program="../train.py"),
        lambda base: base.hyperparameters({"sagemaker_submit_directory": "/no/such/folder"}),
        lambda base: (
            base.hyperparameters({"sagemaker_mpi_enabled": "true"}),
            base.executable("mpirun", "#!/bin/sh\necho a launcher of ours\n"),
        ),
        lambda base: base.hyperparameters({"text": "x" * 200_000}),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_train(base: Base, spoil: Any) -> None:
    base.program("", "src/other.py")
    base.program("")
    spoil(base)

    document = read_check(base)
    done = base.train()

    (wrong,) = [check for check in document["checks"] if check["status"] == "fail"]
    assert done.status == document["exit_code"] == 78
    assert done.outcome["cause"]["message"] == wrong["found"]
    assert document["plan"] is None
    assert row(document, "scratch")["status"] == "ok"  # What needs no documents is looked at all the same.


def test_a_wrong_setting_is_one_of_ours(base: Base) -> None:
    document = read_check(base, TOOLKIT_GRACE_S="soon")

    assert row(document, "settings")["found"].startswith("TOOLKIT_GRACE_S: expected seconds")
    assert document["exit_code"] == 78


def test_a_variable_that_is_no_setting_is_a_warning(base: Base) -> None:
    base.program("")

    document = read_check(base, TOOLKIT_STALL="5")

    assert "TOOLKIT_STALL (Did you mean TOOLKIT_STALL_S?)" in row(document, "variables")["found"]
    assert document["exit_code"] == 0


@pytest.mark.parametrize(
    ("content", "status", "expected"),
    [
        ('[{"name": "nan", "pattern": "nan"}]', "ok", "nan"),
        ('[{"name": "nan", "pattern": "("}]', "fail", "watch/rules.json: rule 'nan': pattern: expected a regular"),
        (None, "fail", "TOOLKIT_RULES: watch/rules.json: expected a readable file, found none"),
    ],
)
def test_the_jobs_rules_are_read_from_the_code(base: Base, content: str | None, status: str, expected: str) -> None:
    base.program("")
    if content is not None:
        (base.code / "watch").mkdir()
        (base.code / "watch/rules.json").write_text(content)

    rules = row(read_check(base, TOOLKIT_RULES="watch/rules.json"), "rules")

    assert rules["status"] == status
    assert rules["found"].startswith(expected)


@pytest.mark.parametrize("form", ["in place", "folder", "archive", "command", "file"])
def test_nothing_on_the_disk_is_changed(base: Base, form: str) -> None:
    submitted = base.folder / "submitted"
    submitted.mkdir()
    program = base.program("#!/bin/sh\nprint('never run')\n", "run" if form == "command" else "train.py")
    hyperparameters: dict[str, object] = {}
    if form in ("folder", "archive", "file"):
        program = program.rename(submitted / "train.py")
        hyperparameters = {"sagemaker_submit_directory": str(program if form == "file" else submitted)}
    if form == "archive":
        with tarfile.open(submitted / "sourcedir.tar.gz", "w:gz") as archive:
            archive.add(program, "train.py")
        hyperparameters = {"sagemaker_submit_directory": str(submitted / "sourcedir.tar.gz")}
    base.hyperparameters(hyperparameters, program="run" if form == "command" else "train.py")
    (base.folder / "tmp").mkdir()
    traces_before = traces(base.root) | traces(submitted)

    document = read_check(base, TMPDIR=str(base.folder / "tmp"))

    assert (document["exit_code"], row(document, "code")["status"]) == (0, "ok")
    assert traces(base.root) | traces(submitted) == traces_before
    assert list((base.folder / "tmp").iterdir()) == []


def test_a_setting_that_is_misspelt_in_the_jobs_own_environment_is_named_as_in_train(base: Base) -> None:
    base.program("")
    job = base.folder / "job.json"
    job.write_text(json.dumps({"script": str(base.code / "train.py"), "env": {"TOOLKIT_GRACE": "7"}}))

    document = read_check(base, TOOLKIT_PLATFORM="plain", TOOLKIT_JOB=str(job), TOOLKIT_BASE=str(base.root))

    assert "TOOLKIT_GRACE (Did you mean TOOLKIT_GRACE_S?)" in row(document, "variables")["found"]


def test_the_source_is_named_where_it_is_and_the_plan_where_it_will_be(base: Base) -> None:
    submitted = base.folder / "submitted"
    submitted.mkdir()
    (submitted / "train.py").touch()
    (submitted / "requirements.txt").write_text("some-package\n")
    base.hyperparameters({"sagemaker_submit_directory": str(submitted)})

    document = read_check(base)

    assert row(document, "code")["found"] == f"train.py (program) in {submitted}"
    assert row(document, "install")["found"] == "pip install -r requirements.txt runs first"
    assert [phase["name"] for phase in document["plan"]["phases"]] == ["install", "train"]
    assert {phase["cwd"] for phase in document["plan"]["phases"]} == {str(base.code)}


def test_no_secret_is_shown(base: Base) -> None:
    secret = "s3cr\"et it's"
    base.hyperparameters({"api_key": json.dumps(secret), "db": json.dumps({"password": secret}), "pw": "hq7"})
    base.program("")

    for words in ([], ["--json"]):
        done = checked(base, *words, AWS_SECRET_ACCESS_KEY="quite-another-one", MY_TOKEN="tok-tok-tok")

        assert b"cr\\" not in done.stdout and b"et it" not in done.stdout  # Neither as it is nor quoted.
        assert b"hq7" not in done.stdout
        assert b"quite-another" not in done.stdout + done.stderr
        assert b"******" in done.stdout


def test_a_missing_first_line_program_fails(base: Base) -> None:
    base.hyperparameters(program="run.sh")
    base.program("#!/no/such/shell -e\n", "run.sh")

    program = row(read_check(base), "program")

    assert (program["status"], program["found"]) == (
        "fail",
        "run.sh names /no/such/shell in its first line, which is not there",
    )


def test_a_missing_launcher_program_fails(base: Base) -> None:
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program("")

    document = read_check(base, RUN_NEURON_PARALLEL_COMPILE="1")

    assert row(document, "program")["found"] == "no neuron_parallel_compile on PATH, which starts the launcher"


def test_gpus_are_compared_with_the_processes(base: Base) -> None:
    base.executable("nvidia-smi", "#!/bin/sh\necho 'GPU 0: H200'\necho 'GPU 1: H200'\n")
    base.hyperparameters({"sagemaker_torch_distributed_enabled": "true"})
    base.program("")

    enough = row(read_check(base), "GPUs")
    few = row(read_check(base, CUDA_VISIBLE_DEVICES="1"), "GPUs")

    assert (enough["status"], enough["found"]) == ("ok", "2 GPUs for 2 processes")
    assert (few["status"], few["found"]) == ("ok", "1 GPU for 1 process, CUDA_VISIBLE_DEVICES=1")


def test_channels_without_input_are_named(base: Base) -> None:
    base.inputs("train", "test")
    (base.root / "input/data/train/images").touch()
    base.program("")

    channels = row(read_check(base), "channels")

    assert channels["status"] == "warn"
    assert channels["found"] == f"test: {base.root}/input/data/test is empty"


def test_a_pipe_channel_is_looked_at_but_never_opened(base: Base) -> None:
    """Contract point 66: opening a FIFO would block, and take what its first reader should get."""
    base.inputs("train", mode="Pipe")
    base.program("")
    missing = row(read_check(base), "channels")
    (base.root / "input/data").mkdir(parents=True)
    os.mkfifo(base.root / "input/data/train_0")

    assert missing["found"] == f"train: no FIFO {base.root}/input/data/train_0"
    assert row(read_check(base), "channels") == {
        "name": "channels",
        "status": "ok",
        "found": "train (Pipe)",
        "advice": "",
    }


@pytest.mark.parametrize(
    ("regex", "status"), [("loss: ([0-9.]+", "fail"), ("'lr': ([0-9.]*)", "warn"), ("x=([-+.0-9eE]+|nan|inf)", "ok")]
)
def test_metric_definitions_are_tried(base: Base, regex: str, status: str) -> None:
    base.document("metric-definition-regex.json", [{"Name": "m", "Regex": regex}])
    base.program("")

    assert row(read_check(base), "metrics")["status"] == status


THEIRS = "#!/usr/bin/python3\nimport sys\nfrom sagemaker_training.cli.train import main\nsys.exit(main())\n"


@pytest.mark.parametrize("archived", [False, True])
def test_a_hyperparameter_that_the_script_knows_in_another_spelling_is_named(base: Base, archived: bool) -> None:
    source = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--train-batch-size')\np.add_argument('--lr')\n"
        "print(p.parse_known_args())\n"
    )
    base.program(source)
    base.hyperparameters({"train_batch_size": "8", "lr": "0.1"})
    if archived:
        with tarfile.open(base.folder / "source.tar.gz", "w:gz") as archive:
            archive.add(base.code / "train.py", "train.py")
        base.hyperparameters(
            {
                "train_batch_size": "8",
                "lr": "0.1",
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": str(base.folder / "source.tar.gz"),
            }
        )

    options = row(read_check(base), "options")

    assert options["status"] == "warn"
    assert options["found"] == "--train_batch_size is passed, train.py knows --train-batch-size"
    assert options["advice"] == (
        "Its parse_known_args drops such an option silently: name the hyperparameter train-batch-size"
    )


def test_a_train_that_another_package_has_put_on_path_fails(base: Base) -> None:
    base.executable("train", THEIRS)
    base.program("print('ran')")

    result = row(read_check(base), "train")
    done = base.train()

    message = f"train on PATH is {base.folder}/bin/train, which starts sagemaker_training, not this toolkit"
    assert (result["status"], result["found"]) == ("fail", message)
    assert "container-training-toolkit" in result["advice"]
    assert f"warning: {message}" in done.log
    assert done.stdout == b"ran\n"


@pytest.mark.root
@pytest.mark.parametrize("shut", ["", "input", "input/config", "code"])
def test_a_base_that_the_user_may_not_read_is_a_line_of_the_table(shut: str) -> None:
    closed = [str(folder) for folder in Path(sys.executable).resolve().parents if not folder.stat().st_mode & 0o001]
    if closed:
        pytest.skip(f"other users cannot start this interpreter: {closed[-1]} is closed to them")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        base = Base(Path(folder))
        base.program("")
        (base.root / shut).chmod(0o700)

        done = subprocess.run(
            [sys.executable, "-m", "toolkit", "check", "--json"],
            env=base.environ(PYTHONPATH=str(ROOT)),
            cwd="/",
            user=65534,
            group=65534,
            extra_groups=(),
            capture_output=True,
            timeout=60,
        )

    document = json.loads(done.stdout)
    wrong = [check["found"] for check in document["checks"] if check["status"] == "fail"]
    assert (done.returncode, document["exit_code"]) == (78, 78)
    assert any(f"{base.root}/{shut}" in text for text in wrong), wrong
