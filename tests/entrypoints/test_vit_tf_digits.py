"""The Vision Transformer of the notebook on the Training Compiler: native, compiled, over two devices, and compared."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT
from tests.tensorflow.bed import InBed, needs_bed

pytestmark = [
    *needs_bed,
    pytest.mark.skipif(find_spec("sklearn") is None, reason="not installed: scikit-learn"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]
WORKLOAD = ROOT / "entrypoints/vit_tf_digits"
SMALL = {"EPOCHS": 2, "images": 256, "depth": 1, "width": 16, "image-size": 16}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as PNG files in class folders, as prepare.py writes them."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run((sys.executable, str(WORKLOAD / "prepare.py"), str(folder)), check=True)
    return folder


def run(folder: Path, name: str, images: Path, *words: str, **options: object) -> dict[str, float]:
    """Run the job below *folder* and return its last metrics."""
    words = (
        *words,
        *(word for channel in ("train", "validation") for word in ("--channel", f"{channel}={images / channel}")),
    )
    for key, value in {**SMALL, **options}.items():
        words += ("--hyperparameter", f"{key.replace('_', '-') if key == 'jit_compile' else key}={value}")
    (folder / name).mkdir()
    with InBed(folder / name, str(WORKLOAD / "job.toml"), "--name", name, *words) as job:
        assert job.end() == 0, job.console
        metrics: dict[str, float] = job.report["metrics"]
        return metrics


@pytest.mark.long
def test_native_and_compiled_learn_alike_and_are_compared_by_the_notebooks_own_definitions(
    tmp_path: Path, images: Path
) -> None:
    assert len(list((images / "train").iterdir())) == 10  # A folder for each class.
    native = run(tmp_path, "native", images, jit_compile="false")
    compiled = run(tmp_path, "compiled", images, "--env", "TOOLKIT_COMPILE=on")
    assert set(native) >= {"training_loss", "training_accuracy", "s/epoch", "ms/step", "images_per_second"}
    assert compiled["training_loss"] == pytest.approx(native["training_loss"], rel=0.01)

    command = (sys.executable, "-m", "toolkit", "compare", "native/job", "compiled/job", "-o", "-", "--format", "json")
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    blocks = {block.get("id"): block for section in json.loads(done.stdout)["sections"] for block in section["blocks"]}
    quantities = [row[0] for row in blocks["savings-compiled"]["rows"]]
    assert {"actual savings", "potential savings", "throughput speed-up"} <= set(quantities)
    assert [len(line["mean"]) for line in blocks["loss"]["lines"]] == [2, 2]
    rows = {row[0]: row[1:] for row in blocks["compilers"]["rows"]}
    assert rows["framework"] == [None, "tensorflow"]
    assert rows["at the end"] == [None, "compiled"]


@pytest.mark.long
def test_two_logical_devices_under_mirrored_strategy_learn_as_one_does(tmp_path: Path, images: Path) -> None:
    single = run(tmp_path, "one", images, jit_compile="false", EPOCHS=1)
    two = run(tmp_path, "two", images, jit_compile="false", EPOCHS=1, devices=2)
    compiled = run(tmp_path, "compiled", images, "--env", "TOOLKIT_COMPILE=on", EPOCHS=1, devices=2)

    assert two["training_loss"] == pytest.approx(single["training_loss"], rel=0.01)
    assert compiled["training_loss"] == pytest.approx(single["training_loss"], rel=0.01)
    log = (tmp_path / "compiled/job/logs/algo-1.log").read_text()
    assert "the model's forward and backward pass is compiled, as asked" in log
