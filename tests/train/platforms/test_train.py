"""`train` as orchestrators start it, in separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train.base import ROOT
from tests.train.test_process import mounts

TRAIN = (sys.executable, "-m", "toolkit.cli.main", "train")
FAILS = "import sys\nsys.exit('no such shard, api_key sesame-open-9')\n"


def start(folder: Path, **more: str) -> subprocess.Popen[str]:
    environ = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "TOOLKIT_BASE": f"{folder}/base/{{host}}",
        "TMPDIR": str(folder),
        **more,
    }
    return subprocess.Popen(
        TRAIN,
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    log = tmp_path / "termination-log"
    log.touch()
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "pod", "TOOLKIT_TERMINATION_LOG": str(log)}


def test_a_wrong_setting_is_reported_where_the_right_ones_say(tmp_path: Path, pod: dict[str, str]) -> None:
    status, output = end(start(tmp_path, TOOLKIT_PROGRAM="train.py", TOOLKIT_GRACE_S="soon", **pod))

    assert status == 78, output
    assert "TOOLKIT_GRACE_S: expected seconds" in (tmp_path / "base/pod/output/failure").read_text()
    assert "TOOLKIT_GRACE_S: expected seconds" in (tmp_path / "termination-log").read_text()


def test_a_pods_last_message_is_why_it_failed(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(FAILS)

    status, _ = end(start(tmp_path, TOOLKIT_PROGRAM="train.py", API_KEY="sesame-open-9", **pod))

    message = (tmp_path / "termination-log").read_text()
    assert status == 1
    assert message.startswith("ExecuteUserScriptError:\nExitCode 1\n")
    assert "no such shard" in message
    assert "sesame" not in message
    assert (tmp_path / "base/pod/output/failure").exists()


def test_a_pod_that_succeeds_has_no_last_message(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")

    status, _ = end(start(tmp_path, TOOLKIT_PROGRAM="train.py", **pod))

    assert status == 0
    assert (tmp_path / "termination-log").read_text() == ""


def test_a_long_failure_is_cut_to_what_the_kubelet_takes(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('\\u00e9' * 9000)\n")

    end(start(tmp_path, TOOLKIT_PROGRAM="train.py", **pod))

    message = (tmp_path / "termination-log").read_bytes()
    assert 2000 < len(message) <= 4096
    assert message.decode("utf-8")


def test_a_machine_without_a_termination_log_gets_none(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    Path(pod["TOOLKIT_TERMINATION_LOG"]).unlink()

    status, output = end(start(tmp_path, TOOLKIT_PROGRAM="train.py", **pod))

    assert status == 1
    assert not Path(pod["TOOLKIT_TERMINATION_LOG"]).exists()
    assert "termination-log" not in output


def test_a_platforms_job_without_a_script_ends_with_78_and_says_how_to_name_one(
    tmp_path: Path, pod: dict[str, str]
) -> None:
    status, output = end(start(tmp_path, **pod))

    assert status == 78
    assert "ExitCode 78" in (tmp_path / "base/pod/output/failure").read_text()
    assert "Set TOOLKIT_PROGRAM or SAGEMAKER_PROGRAM to the script, or TOOLKIT_JOB to a job file" in output


def test_a_current_folder_that_was_removed_is_told(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    argv = ("sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *TRAIN)
    environ = {"PATH": os.environ["PATH"], "TOOLKIT_BASE": str(tmp_path / "ml"), "PYTHONPATH": str(ROOT)}

    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 78
    assert "train: expected a current folder, found that it was removed" in done.stderr
    assert "ExitCode 78" in (tmp_path / "ml/output/failure").read_text()


@pytest.mark.skipif(Path("/opt/ml/input/config").exists(), reason="this machine has an /opt/ml")
def test_nothing_at_all_ends_with_78_and_names_every_way_to_name_a_script(tmp_path: Path) -> None:
    process = subprocess.run(TRAIN, env={"PATH": os.environ["PATH"]}, cwd=tmp_path, capture_output=True, text=True)

    assert process.returncode == 78
    for way in ("TOOLKIT_PROGRAM", "SAGEMAKER_PROGRAM", "TOOLKIT_JOB", "toolkit run", "SAGEMAKER_BASE_DIR"):
        assert way in process.stderr


@pytest.mark.parametrize("variables", [{"SAGEMAKER_PROGRAM": "train.py"}, {"TOOLKIT_PROGRAM": "train.py"}, {}], ids=str)
def test_a_job_of_one_host_needs_no_document(tmp_path: Path, variables: dict[str, str]) -> None:
    """{}: the script is the only one in the code folder."""
    base = tmp_path / "ml"
    (base / "code").mkdir(parents=True)
    (base / "code/train.py").write_text("import os\nprint('model goes to', os.environ['SM_MODEL_DIR'])\n")
    if variables:
        (base / "code/helper.py").touch()

    status, output = end(start(tmp_path, TOOLKIT_BASE=str(base), **variables))

    assert status == 0, output
    assert f"model goes to {base}/model\n" in output
    assert (base / "output/success").exists()


@pytest.mark.parametrize("name", ["TOOLKIT_PROGRAM", "SAGEMAKER_PROGRAM"])
def test_a_script_that_is_not_there_is_told_by_the_variable_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "ml/code").mkdir(parents=True)
    (tmp_path / "ml/code/train.py").touch()

    status, output = end(start(tmp_path / "ml/code", TOOLKIT_BASE=str(tmp_path / "ml"), **{name: "trian.py"}))

    assert status == 78
    assert f"{name}: no 'trian.py' in {tmp_path}/ml/code, which holds " in output


def test_a_wrong_path_of_a_program_makes_no_folder(tmp_path: Path) -> None:
    status, output = end(start(tmp_path, TOOLKIT_PROGRAM=f"{tmp_path}/nowhere/train.py"))

    assert (status, (tmp_path / "nowhere").exists()) == (78, False)
    assert f"TOOLKIT_PROGRAM: no 'train.py' in {tmp_path}/nowhere" in output


def test_the_images_program_takes_hyperparameters_and_a_distribution_by_variables(tmp_path: Path) -> None:
    (tmp_path / "ml/code").mkdir(parents=True)
    (tmp_path / "ml/code/train.sh").write_text('echo "got $*"\n')
    more = {"SAGEMAKER_PROGRAM": "train.sh", "TOOLKIT_HYPERPARAMETERS": '{"epochs": 5}', "TOOLKIT_DISTRIBUTION": "none"}

    status, output = end(start(tmp_path, TOOLKIT_BASE=str(tmp_path / "ml"), **more))

    assert (status, "got --epochs 5\n" in output) == (0, True), output


@pytest.mark.root
def test_the_image_of_the_readme_runs_its_script(tmp_path: Path) -> None:
    """Its COPY and ENV lines, below this test's own /opt."""
    page = (Path(__file__).parents[3] / "README.md").read_text()
    lines = [line.split() for line in page.partition("```dockerfile\n")[2].partition("```")[0].splitlines()]
    ((source, target),) = [words[1:] for words in lines if words[0] == "COPY" and words[1].endswith(".py")]
    environ = dict(words[1].split("=") for words in lines if words[0] == "ENV")
    (tmp_path / source).write_text("import os\nprint('model goes to', os.environ['SM_MODEL_DIR'])\n")
    script = f'mount -t tmpfs none /opt && mkdir -p {Path(target).parent} && cp {source} {target} && exec "$@"'

    done = subprocess.run(
        [*mounts(), "sh", "-c", script, "sh", *TRAIN],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (0, "model goes to /opt/ml/model\n"), done.stderr


def test_hosts_named_by_a_variable_share_their_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, time\nif os.environ['SM_CURRENT_HOST'] == 'b':\n    sys.exit(9)\ntime.sleep(300)\n"
    )
    port = str(free_port())
    more = {
        "TOOLKIT_PROGRAM": "train.py",
        "TOOLKIT_HOSTS": "a,b",
        "TOOLKIT_HOST_ADDRESSES": "a=127.0.0.1,b=127.0.0.1",
        "TOOLKIT_LINK_PORT": port,
    }

    first, second = start(tmp_path, TOOLKIT_HOST="a", **more), start(tmp_path, TOOLKIT_HOST="b", **more)

    assert (end(first)[0], end(second)[0]) == (9, 9)
    assert "host b" in (tmp_path / "base/a/output/failure").read_text()


def test_hosts_known_by_number_share_their_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nprint('rank', os.environ['NODE_RANK'], os.environ['SM_HOSTS'])\n")
    more = {"TOOLKIT_PROGRAM": "train.py", "MASTER_ADDR": "127.0.0.1", "NNODES": "2"}
    more["TOOLKIT_LINK_PORT"] = str(free_port())

    processes = [start(tmp_path, NODE_RANK=str(rank), **more) for rank in range(2)]

    ends = [end(process) for process in processes]
    assert [status for status, _ in ends] == [0, 0], ends
    assert 'rank 1 ["node-0","node-1"]' in ends[1][1]
