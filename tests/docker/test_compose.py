"""A compose file of the form that SageMaker's SDK v2 writes in Local Mode, run by `docker compose`."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.docker.engine import Engine, host

pytestmark = pytest.mark.docker

HOSTS = ("algo-1-a1b2c", "algo-2-a1b2c")
SHOWN = (("inspect", "--format", "{{.Name}} {{json .State}}"), ("top",), ("logs",))
SCRIPT = """
import os, socket
host = os.environ["SM_CURRENT_HOST"]
others = [socket.gethostbyname(name) for name in os.environ["SM_HOSTS"].strip("[]").replace('"', "").split(",")]
open(os.environ["SM_MODEL_DIR"] + "/" + host, "w").write(str(len(others)))
print("trained on", host)
"""


def compose(folder: Path, image: str, network: str) -> Path:
    """Write the file, as local/image.py of sagemaker 2.257: hosts have folders of their own, and one for models."""
    services = {}
    (folder / "model").mkdir()
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text(SCRIPT)
    for name in HOSTS:
        base = host(folder / name)
        base.hyperparameters({"sagemaker_submit_directory": '"file:///opt/ml/code"', "sagemaker_region": '"eu-west-1"'})
        base.document("inputdataconfig.json", {})
        base.document(
            "resourceconfig.json",
            {
                "current_host": name,
                "hosts": list(HOSTS),
                "network_interface_name": "eth0",
                "current_instance_type": "local",
            },
        )
        volumes = [f"{base.root}/{folder}:/opt/ml/{folder}" for folder in ("output", "output/data", "input")]
        volumes += [f"{folder}/model:/opt/ml/model", f"{folder}/code:/opt/ml/code", f"{folder}/code:/opt/ml/shared"]
        services[name] = {
            "image": image,
            "command": "train",
            "stdin_open": True,
            "tty": True,
            "volumes": volumes,
            "environment": ["AWS_REGION=eu-west-1", "TRAINING_JOB_NAME=local-job", "TOOLKIT_LINK=on"],
            "networks": {"sagemaker-local": {"aliases": [name]}},
        }
    path = folder / "docker-compose.yaml"
    text = {"version": "2.3", "services": services, "networks": {"sagemaker-local": {"name": network}}}
    path.write_text(json.dumps(text))  # YAML holds JSON.
    return path


def test_local_modes_compose_file_runs_two_hosts(engine: Engine, image: str, tmp_path: Path) -> None:
    file = compose(tmp_path, image, f"{engine.name}-net")
    words = ("docker", "compose", "--project-name", engine.name, "--file", str(file))

    try:
        up = (*words, "up", "--abort-on-container-exit")
        try:
            done = subprocess.run(up, env=engine.environ, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            parts = [engine.ask(*command, box, check=False) for box in _boxes(engine) for command in SHOWN]
            raise AssertionError("\n".join(["runs after 300 s", *parts])) from None
        codes = [engine.ask("inspect", "--format", "{{.State.ExitCode}}", box) for box in _boxes(engine)]
    finally:
        subprocess.run((*words, "down"), env=engine.environ, capture_output=True, timeout=120, check=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert codes == ["0", "0"]
    assert {path.name: path.read_text() for path in (tmp_path / "model").iterdir()} == dict.fromkeys(HOSTS, "2")
    assert all((tmp_path / name / "opt/ml/output/success").exists() for name in HOSTS)


def _boxes(engine: Engine) -> list[str]:
    return engine.ask("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={engine.name}").split()
