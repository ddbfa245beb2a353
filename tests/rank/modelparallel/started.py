"""Ranks of a program of the model parallel library, started as a launcher starts them."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.forking import TORCH, Fork
from tests.started import PROGRAMS, ended, ranks

__all__ = ["PROGRAMS", "TRANSFORMERS", "ended", "has_chains", "reports", "smp_ranks"]
# What a script that uses transformers imports; modeling_utils and what imports it look for the library meanwhile.
TRANSFORMERS = (*TORCH, "accelerate", "transformers.masking_utils")


def has_chains() -> bool:
    """Return whether a chain runs by torch's schedules: its pipeline stages have another form in torch 2.9."""
    return not version("torch").startswith("2.9.")


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
    """Start *size* ranks of *program* with mp_parameters *parameters*, whose steps are timed, as a job's are.

    *folder* is the job's output/data.
    """
    own = {
        "SM_HP_MP_PARAMETERS": json.dumps(parameters),
        "SM_OUTPUT_DATA_DIR": str(folder),
        "TOOLKIT_STATUS_FOLDER": str(folder),
        "TOOLKIT_STEP_TIMES": "on",
    }
    every = {**own, **(environ or {})}
    return ranks(program, *arguments, environ=every, size=size, compat="smp", python=python, modules=modules)


def reports(
    program: Path, *arguments: str, parameters: dict[str, Any], size: int, folder: Path, **more: Any
) -> list[Any]:
    """Return the last line that each rank printed, decoded; all have ended well."""
    streams = ended(smp_ranks(program, *arguments, parameters=parameters, size=size, folder=folder, **more))
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in streams]
