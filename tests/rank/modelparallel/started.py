"""Ranks of a program of the model parallel library, started as a launcher starts them."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.forking import TORCH, Fork
from tests.started import PROGRAMS, ended, ranks

__all__ = ["PROGRAMS", "TRANSFORMERS", "ended", "smp_ranks"]
# What a script that uses transformers imports; modeling_utils and what imports it look for the library meanwhile.
TRANSFORMERS = (*TORCH, "accelerate", "transformers.masking_utils")


def smp_ranks(
    program: Path,
    *arguments: str,
    parameters: dict[str, Any],
    size: int,
    folder: Path,
    environ: dict[str, str] | None = None,
    python: str = sys.executable,
    modules: tuple[str, ...] = TORCH,
) -> list[Fork]:
    """Start *size* ranks of *program* with mp_parameters *parameters*; *folder* is the job's output/data."""
    own = {"SM_HP_MP_PARAMETERS": json.dumps(parameters), "SM_OUTPUT_DATA_DIR": str(folder)}
    every = {**own, **(environ or {})}
    return ranks(program, *arguments, environ=every, size=size, compat="smp", python=python, modules=modules)
