"""A host with GPUs gets a rank for each, and GPUs that cannot be used are named; nvidia-smi is a recorded one."""

from pathlib import Path

import pytest

from tests.train.base import SEES, Base
from tests.train.test_together import Hosts

EIGHT = "\n".join(f"GPU {number}: NVIDIA A100 (UUID: GPU-{number})" for number in range(8))
LOST = "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"


def smi(base: Base, text: str) -> None:
    base.executable("nvidia-smi", f"#!/bin/sh\n{text}\n")


@pytest.mark.parametrize(
    ("visible", "count", "message"),
    [
        ("2,5", 2, "the job sees 2 of this host's 8 GPUs"),
        ("", 0, "the job sees 0 of this host's 8 GPUs"),
        ("GPU-3", 1, "the job sees 1 of this host's 8 GPUs"),
        ("0,9", 1, "the job sees 1 of this host's 8 GPUs: this host has no GPU 9"),
        (None, 8, ""),
    ],
)
def test_a_script_is_told_of_the_gpus_that_it_sees(base: Base, visible: str | None, count: int, message: str) -> None:
    smi(base, f"cat <<END\n{EIGHT}\nEND")
    base.program(SEES)

    done = base.train({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert done.environ["SM_NUM_GPUS"] == str(count)
    assert done.log.count("CUDA_VISIBLE_DEVICES=") == bool(message)
    assert message in done.log


@pytest.mark.torch
@pytest.mark.parametrize("platform", ["sagemaker", "plain"])
def test_torchrun_starts_one_rank_for_each_visible_gpu(base: Base, platform: str) -> None:
    pytest.importorskip("torch")
    smi(base, f"cat <<END\n{EIGHT}\nEND")
    base.hyperparameters({"sagemaker_pytorch_ddp_enabled": "true"})
    base.program("import os; print('world', os.environ['WORLD_SIZE'])\n")
    more = {"TOOLKIT_PLATFORM": platform, "TOOLKIT_BASE": str(base.root)}

    done = base.train({**more, "CUDA_VISIBLE_DEVICES": "4,5"})

    assert done.stdout.count(b"world 2") == 2, done


def test_a_gpu_that_cannot_be_used_ends_the_job_with_75_in_nvidia_smis_own_words(base: Base) -> None:
    smi(base, f'echo "{LOST}"; exit 15')
    base.program("print('trains')\n")

    done = base.train()

    assert done.status == 75
    assert done.failure is not None
    assert f"nvidia-smi --list-gpus ended with 15: {LOST}" in done.failure
    assert b"trains" not in done.stdout


def test_a_job_that_asks_for_no_gpu_runs_where_they_cannot_be_used(base: Base) -> None:
    smi(base, f'echo "{LOST}"; exit 15')
    base.program("print('trains')\n")

    done = base.train(CUDA_VISIBLE_DEVICES="-1")

    assert done.status == 0
    assert LOST in done.log


def test_the_other_hosts_hear_of_a_gpu_that_cannot_be_used(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    for name, base in hosts.bases.items():
        smi(base, f'echo "{LOST}"; exit 15' if name == "algo-2" else f"cat <<END\n{EIGHT}\nEND")
        base.program("print('trains')\n")

    done = hosts.run()

    assert [end.status for end in done.values()] == [75, 75], done
    assert all(LOST in (end.failure or "") for end in done.values())
    assert not any(b"trains" in end.stdout for end in done.values())
