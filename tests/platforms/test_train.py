"""`train` as orchestrators start it, in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

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
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    log = tmp_path / "termination-log"
    log.touch()
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "pod", "TOOLKIT_TERMINATION_LOG": str(log)}


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

    status, said = end(start(tmp_path, TOOLKIT_PROGRAM="train.py", **pod))

    assert status == 1
    assert not Path(pod["TOOLKIT_TERMINATION_LOG"]).exists()
    assert "termination-log" not in said


def test_a_platforms_job_without_a_script_ends_with_78_and_says_how_to_name_one(
    tmp_path: Path, pod: dict[str, str]
) -> None:
    status, said = end(start(tmp_path, **pod))

    assert status == 78
    assert "ExitCode 78" in (tmp_path / "base/pod/output/failure").read_text()
    assert "Set TOOLKIT_JOB to a job file, or TOOLKIT_PROGRAM to the script" in said


def test_nothing_at_all_ends_with_78_and_names_both_ways(tmp_path: Path) -> None:
    if Path("/opt/ml/input/config").exists():
        pytest.skip("this machine has an /opt/ml")

    process = subprocess.run(TRAIN, env={"PATH": os.environ["PATH"]}, cwd=tmp_path, capture_output=True, text=True)

    assert process.returncode == 78
    assert "TOOLKIT_JOB" in process.stderr
    assert "SAGEMAKER_BASE_DIR" in process.stderr


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
