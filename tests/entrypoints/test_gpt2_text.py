"""The GPT-2 of the article on the Training Compiler, by Hugging Face's Trainer: its hyperparameters and definitions."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.simulate.toolkit_run import ROOT, ToolkitRun

BED = Path(os.environ.get("TOOLKIT_BEDS") or ROOT / ".beds").absolute() / "transformers"
pytestmark = [
    pytest.mark.transformers,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason=f"{BED} is not ready: run scripts/beds/transformers"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]
WORKLOAD = ROOT / "entrypoints/gpt2_text"
SMALL = {
    "num_train_epochs": 2,
    "characters": 30000,
    "block_size": 32,
    "layers": 1,
    "width": 32,
    "vocabulary": 512,
}
SUMMARY = ("runtime", "samples_per_second", "steps_per_second", "loss")


class InBed(ToolkitRun):
    python = str(BED / "bin/python")
    deadline_s = 300

    def __init__(self, folder: Path, *words: str, **options: object) -> None:
        hyperparameters = {**SMALL, **options}
        words += tuple(
            word for name, value in hyperparameters.items() for word in ("--hyperparameter", f"{name}={value}")
        )
        path = f"{BED / 'bin'}:{os.environ['PATH']}"
        super().__init__(folder, str(WORKLOAD / "job.toml"), *words, PATH=path, OMP_NUM_THREADS="1")


def train(folder: Path, *words: str, **options: object) -> tuple[dict[str, Any], str]:
    folder.mkdir()
    with InBed(folder, *words, **options) as job:
        assert job.end() == 0, job.console
        return job.report, job.console


def test_the_articles_job_runs_as_written_and_its_seven_metrics_are_captured(tmp_path: Path) -> None:
    native, console = train(tmp_path / "native")

    metrics = native["metrics"]
    assert {f"summary_train_{name}" for name in SUMMARY} | {"epoch", "train_loss", "learning_rate"} <= set(metrics)
    assert metrics["epoch"] == 2.0
    assert metrics["train_loss"] < 6.2  # ln 512 = 6.24 is to know nothing.
    for line in (
        "evaluation_strategy is called eval_strategy",
        "overwrite_output_dir is gone",
        "fp16 needs a GPU",
        "dataset_name=glue is not downloaded",
    ):
        assert console.count(line) == 1, line
    # The article's regex reads 4.5e-05 as 4.5: said once, with a better one.
    assert console.count("metric 'learning_rate'") == 1
    assert "Write 'learning_rate': ([-+]?" in console
    # Trainer's own lines have quotes around the numbers; this script prints them without.
    assert console.count("whose Trainer puts numbers in quotes") == 1


@pytest.mark.long
def test_the_same_script_trains_under_pytorchxla_in_two_ranks_without_torch_xla(tmp_path: Path) -> None:
    ddp, _ = train(tmp_path / "ddp", num_train_epochs=1)
    xla, console = train(
        tmp_path / "xla", "--distribution", "pytorchxla", "--env", "TOOLKIT_COMPAT=torch_xla", num_train_epochs=1
    )

    assert "world size 2" in console
    assert xla["metrics"]["train_loss"] == pytest.approx(ddp["metrics"]["train_loss"], rel=0.01)
