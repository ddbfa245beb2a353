"""torch_xla's names over torch, for machines without torch_xla; only jobs that ask get them (docs/pytorchxla.md)."""

import os

import toolkit
from toolkit.rank.xla.live import shim

__version__ = f"0+toolkit{toolkit.__version__}"
rank = shim.XlaModel(os.environ)
shim.register_backend()

device = rank.device
sync = rank.mark_step
launch = rank.launch
compile = shim.compile_function
step = shim.compile_function


def devices() -> list[object]:
    return [device()]


def device_count() -> int:
    return 1
