"""The GPT-2 of the article on the Training Compiler, by Hugging Face's Trainer, under a real torch_xla."""

import sys
from pathlib import Path

import pytest

from tests.commands.simulate.toolkit_run import ROOT
from tests.rank.xla.bed import InBed, needs_bed

pytestmark = [
    *needs_bed,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="a TOML job file needs Python 3.11"),
]
SMALL = {"num_train_epochs": 1, "characters": 30000, "block_size": 32, "layers": 1, "width": 32, "vocabulary": 512}


@pytest.mark.long
def test_the_articles_job_trains_in_two_ranks_and_torch_xla_compiles_it(tmp_path: Path) -> None:
    arguments = [word for name, value in SMALL.items() for word in ("--hyperparameter", f"{name}={value}")]
    words = ("--distribution", "pytorchxla", "--env", "TOOLKIT_COMPILE=auto", *arguments)

    with InBed(tmp_path, str(ROOT / "entrypoints/gpt2_text/job.toml"), *words) as job:
        assert job.end() == 0, job.console

        assert "world size 2" in job.console
        assert job.console.count("compiler: eager: torch_xla compiles by itself") == 1
        assert job.report["metrics"]["epoch"] == 1.0
        assert 4 < job.report["metrics"]["train_loss"] < 6.2  # ln 512 = 6.24 is to know nothing.
