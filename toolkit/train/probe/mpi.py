"""The MPI of this machine: its mpirun is asked, once, and only for jobs that start one."""

import os
import re
from collections.abc import Mapping

from toolkit.job.machine import Mpi
from toolkit.train.probe.ask import ask, find_program

WITHIN_S = 10.0


def find_mpirun(environ: Mapping[str, str]) -> tuple[Mpi | None, str]:
    """Return (the mpirun on *environ*'s PATH, "") or (None, why there is none that can be used)."""
    path = environ.get("PATH", os.defpath)
    program = find_program("mpirun", path)
    if program is None:
        return None, f"no mpirun on PATH ({path})"
    answer = ask((program, "--version"), within_s=WITHIN_S)
    mpi = read_version(answer.text, program)
    if mpi is not None:
        return mpi, ""
    first_line = answer.text.partition("\n")[0].strip() or answer.trouble or "nothing"
    return (
        None,
        f"{program} --version says {first_line!r}, which is neither Open MPI 4 or later nor an MPICH with Hydra",
    )


def read_version(text: str, path: str) -> Mpi | None:
    """Return the MPI whose `mpirun --version` says *text*, None if it is none of those known.

    Seen: "mpirun (Open MPI) 4.1.8", "mpirun (Open MPI) 5.0.11"; of MPICH 5.0.2 "HYDRA build details:" and "Version:".
    """
    open_mpi = re.search(r"\(Open MPI\) (\d+)([\w.]*)", text)
    if open_mpi:
        major = int(open_mpi[1])
        kind = {4: "openmpi4"}.get(major, "openmpi5" if major > 4 else None)
        return None if kind is None else Mpi(kind=kind, version=open_mpi[1] + open_mpi[2], path=path)  # type: ignore[arg-type]
    if "HYDRA build details" in text:
        version = re.search(r"Version:\s*(\S+)", text)
        return Mpi(kind="mpich", version=version[1] if version else "", path=path)
    return None
