"""Ranks of a program of the model parallel library, started as a launcher starts them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.started import PROGRAMS, ended, ranks

__all__ = ["PROGRAMS", "ended", "smp_ranks"]


def smp_ranks(
    program: Path,
    *arguments: str,
    parameters: dict[str, Any],
    size: int,
    folder: Path,
    environ: dict[str, str] | None = None,
    python: str = sys.executable,
) -> "list[subprocess.Popen[str]]":
    """Start *size* ranks of *program* with mp_parameters *parameters*; *folder* is the job's output/data."""
    own = {"SM_HP_MP_PARAMETERS": json.dumps(parameters), "SM_OUTPUT_DATA_DIR": str(folder)}
    return ranks(program, *arguments, environ={**own, **(environ or {})}, size=size, compat="smp", python=python)
