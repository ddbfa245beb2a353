"""A rank of JAX completes the script's call, and recognises the end of the script."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.rank.hook.jax_rank import complete_arguments, describe_differences

HOOK = Path(__file__).parents[3] / "toolkit/rank/hook/site"
JOB = {"JAX_COORDINATOR_ADDRESS": "algo-1:7777", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
PARAMETERS = ("coordinator_address", "num_processes", "process_id", "cluster_detection_method")
ALL: dict[str, Any] = {"num_processes": 4, "process_id": 2, "cluster_detection_method": "deactivate"}


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ({}, JOB, ALL),
        ({"num_processes": None}, JOB, ALL),
        ({"process_id": 0}, JOB, {**ALL, "process_id": 0}),
        ({"coordinator_address": "here:1"}, JOB, {**ALL, "coordinator_address": "here:1"}),
        ({"cluster_detection_method": "slurm"}, JOB, {"cluster_detection_method": "slurm"}),
        ({}, {}, {}),
    ],
)
def test_the_script_wins_and_the_job_fills_in(
    arguments: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]
) -> None:
    assert complete_arguments(arguments, PARAMETERS, environ) == expected


def test_an_older_jax_without_the_parameter_does_not_get_it() -> None:
    assert complete_arguments({}, PARAMETERS[:3], JOB) == {"num_processes": 4, "process_id": 2}


def test_what_contradicts_the_job_is_said() -> None:
    arguments = {"coordinator_address": "here:1", "num_processes": 4}

    assert describe_differences(arguments, JOB) == [
        "the script gives jax.distributed.initialize coordinator_address=here:1, the job has algo-1:7777"
    ]


# A jax whose shutdown waits for nobody: it says that it was called.
JAX = """
def initialize(coordinator_address=None, num_processes=None, process_id=None):
    print("joins", num_processes, process_id)
def shutdown():
    print("waits for the others")
"""
STARTS = "import atexit, sys, jax._src.distributed as d; atexit.register(lambda: d.shutdown()); d.initialize()\n"


@pytest.mark.parametrize(
    ("script", "code", "waits"),
    [
        ("pass", 0, True),
        ("sys.exit(0)", 0, True),
        ("sys.exit(3)", 3, False),
        ("sys.exit('words')", 1, False),
        ("exit(4)", 4, False),
        ("1 / 0", 1, False),
        ("sys.excepthook = lambda *_: None\n1 / 0", 1, False),
        ("raise KeyboardInterrupt", -2, False),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0, True),
        ("try:\n    sys.exit(3)\nexcept SystemExit as error:\n    kept = error", 0, True),
        ("import threading\nthreading.Thread(target=lambda: 1 / 0).start()", 0, True),
        ("def deep():\n    sys.exit(3)\ntry:\n    deep()\nfinally:\n    print()", 3, False),
    ],
)
def test_only_a_process_that_ends_well_waits_for_the_others(
    tmp_path: Path, script: str, code: int, waits: bool
) -> None:
    (tmp_path / "jax/_src").mkdir(parents=True)
    for name in ("jax/__init__.py", "jax/_src/__init__.py", "jax/_src/xla_bridge.py"):
        (tmp_path / name).touch()
    (tmp_path / "jax/_src/distributed.py").write_text(JAX)
    (tmp_path / "train.py").write_text(STARTS + script + "\n")

    done = subprocess.run(
        [sys.executable, "train.py"],
        env={"PYTHONPATH": f"{HOOK}:{tmp_path}", "PATH": "/usr/bin:/bin", "TOOLKIT_JAX": "on", **JOB}
        | {"TOOLKIT_STATUS_FOLDER": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert "joins 4 2" in done.stdout
    assert ("waits for the others" in done.stdout) is waits
