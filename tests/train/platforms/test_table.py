"""A job's environment selects its platform, and each platform has every function."""

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.job.machine import Machine
from toolkit.job.outcome import Outcome
from toolkit.log import Log
from toolkit.settings import Settings
from toolkit.train.platforms.table import detect


@pytest.mark.parametrize("environ", [{}, {"SAGEMAKER_PROGRAM": "train.py"}, {"TOOLKIT_PLATFORM": "no such"}])
@pytest.mark.skipif(Path("/opt/ml/input/config").exists(), reason="this machine has an /opt/ml")
def test_a_host_that_no_orchestrator_claims_is_a_job_of_its_own(environ: dict[str, str]) -> None:
    assert detect(environ).name == "plain"


@pytest.mark.parametrize("name", ["SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN"])
def test_sagemakers_own_variables_claim_a_job(name: str) -> None:
    assert detect({name: "x", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}).name == "sagemaker"


def test_a_job_can_be_read_and_reported_through_its_row(tmp_path: Path) -> None:
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path)}
    (tmp_path / "input/config").mkdir(parents=True)
    for name in ("hyperparameters", "inputdataconfig"):
        (tmp_path / f"input/config/{name}.json").write_text("{}")
    (tmp_path / "input/config/resourceconfig.json").write_text('{"current_host": "a", "hosts": ["a"]}')
    platform = detect(environ)
    places = platform.folders(environ)

    platform.clear_stale(places, Log())
    machine = Machine(cpus=1, cpus_total=1, memory_bytes=1)
    job = platform.read(environ, Settings(), machine, Log(), interpreter="/python")
    platform.report(places, Outcome(status="succeeded", exit_code=0), Log())

    assert job.interpreter == "/python"
    assert places.success.exists()


def test_the_table_imports_no_platform() -> None:
    text = "import sys, toolkit.train.platforms.table\n"
    text += "print([name for name in sys.modules if name.startswith('toolkit.train.platforms.')])"

    completed = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert completed.stdout == "['toolkit.train.platforms.table']\n"
