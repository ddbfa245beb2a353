"""Backend "smddp" on GPUs, a rank on each: NCCL for CUDA tensors, gloo for others, in one group."""

import json
import shutil
import subprocess

import pytest

from tests.started import PROGRAMS, ended, ranks


def gpus() -> int:
    """Return the number of NVIDIA GPUs here, without importing torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.skipif(gpus() == 0, reason="needs an NVIDIA GPU")
def test_on_gpus_everything_is_nccls_to_the_last_bit_and_cpu_tensors_go_by_gloo() -> None:
    size = gpus()

    results = [
        json.loads(out.splitlines()[-1])
        for out, _ in ended(ranks(PROGRAMS / "uses_smddp_cuda.py", environ={}, size=size, modules=()))
    ]

    for result in results:
        assert result["backends"] == ["smddp", "nccl"]
        assert result["same"] == {"reduced": True, "trained": True, "sharded": True}
        assert result["on the cpu"] == [[float(size)] * 3, list(range(size))]
