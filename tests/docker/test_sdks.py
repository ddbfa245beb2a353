"""SageMaker's own SDKs train with the image of docker/pytorch.Dockerfile in this machine's engine (scripts/sdks)."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.docker.engine import ROOT, Engine

pytestmark = pytest.mark.docker

BEDS = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute()
PYTHONS = {"v2": BEDS / "sdks/v2/bin/python", "v3": BEDS / "sdk/v3/bin/python"}
PROGRAMS = ROOT / "tests/programs"
DEADLINE_S = 300
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank = dist.get_rank()
channel = os.environ["SM_CHANNEL_TRAIN"]
print("ranks:", int(total), "argv:", sys.argv[1:], "data:", os.listdir(channel), flush=True)
open(os.path.join(os.environ["SM_MODEL_DIR"], f"rank-{rank}"), "w").write(str(int(total)))
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/digits").write_text("12")
    return tmp_path


def run(sdk: str, engine: Engine, folder: Path, image: str, hosts: int, *words: str) -> str:
    """Return what the program of *sdk* prints; it must end well."""
    python = PYTHONS[sdk]
    if not python.exists():
        pytest.skip("needs SageMaker's SDKs: run scripts/sdks")
    environ = {
        **engine.environ,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "HOME": str(folder),
    }
    argv = (str(python), str(PROGRAMS / f"sdk_{sdk}.py"), str(folder), image, str(hosts), *words)
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
    finally:
        _clear(engine, folder)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _clear(engine: Engine, folder: Path) -> None:
    """Remove the containers and the network that the SDKs leave."""
    left = engine.ask("ps", "--all", "--quiet", "--filter", "network=sagemaker-local").split()
    if left:
        engine.ask("rm", "--force", *left)
    engine.ask("network", "rm", "sagemaker-local", check=False)


def model(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = {Path(member.name).name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


@pytest.mark.parametrize("hosts", [1, 2])
def test_local_mode_of_version_2_trains(engine: Engine, image: str, folder: Path, hosts: int) -> None:
    log = run("v2", engine, folder, image, hosts)

    argv = ["--epochs", "3", "--flag", "True", "--image_shape", "3,224,224"]
    assert log.count(f"ranks: {hosts} argv: {argv} data: ['digits']") == hosts, log
    assert log.count("toolkit 0.1.0: job sdk-two, host algo-") == hosts
    assert "===== Job Complete =====" in log
    assert model(folder / "out/model.tar.gz") == {f"rank-{rank}": str(hosts).encode() for rank in range(hosts)}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("how", ["train", "driver"])
def test_model_trainer_of_version_3_trains(engine: Engine, image: str, folder: Path, hosts: int, how: str) -> None:
    log = run("v3", engine, folder, image, hosts, how)

    assert log.count(f"ranks: {hosts} argv: ") == hosts, log
    assert log.count("'--image_shape', '3,224,224'") == hosts, log
    assert log.count("toolkit 0.1.0: job sdk-three") == (hosts if how == "train" else 0)
    archive = folder / "root/compressed_artifacts/model.tar.gz"
    assert model(archive) == {f"rank-{rank}": str(hosts).encode() for rank in range(hosts)}
