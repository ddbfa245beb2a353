"""Gives every host of `toolkit run` its own /opt/ml if the kernel allows it; else warns if a script uses it.

SageMaker scripts may write to the literal /opt/ml/checkpoints. Outside a container all hosts and jobs on the machine
share that folder. mounts.py gives each host its own; `toolkit run` first tries once whether it can.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from toolkit.commands.simulate.documents import BASE
from toolkit.commands.simulate.source import list_content
from toolkit.commands.simulate.stage import SharedFolder, StagedHost
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log

MOUNTS = Path(__file__).with_name("mounts.py")
WITHIN_S = 20.0
LITERAL = re.compile(rb"""(?<![\w./-])/opt/ml(?![\w.-])[^"'\s()]*""")
# Larger files are not searched: they are no scripts.
LOOKED_AT_BYTES = 1 << 20
INSTEAD = {
    "/opt/ml/checkpoints": "SM_CHECKPOINT_DIR",
    "/opt/ml/model": "SM_MODEL_DIR",
    "/opt/ml/output": "SM_OUTPUT_DIR",
    "/opt/ml/input": "SM_INPUT_DIR or SM_CHANNEL_NAME",
}


def give_own_opt_ml(job_file: JobFile, staged: Sequence[StagedHost], log: Log) -> tuple[StagedHost, ...]:
    """Return *staged* with the command that gives each host its own /opt/ml. If the kernel does not allow it, return
    *staged* unchanged, and warn if a script of the job names /opt/ml."""
    if job_file.run.backend == "docker":
        return tuple(staged)
    reason = _reason_needed(job_file) or reason_refused(staged[0].setup.base)
    if not reason:
        return entering(staged)
    mention = next(_mentions(job_file), None)
    if mention is not None:
        place, path = mention
        instead = next((variable for folder, variable in INSTEAD.items() if path.startswith(folder)), "SM_MODEL_DIR")
        log.warning(
            f"{place} names {path}: here that is this machine's folder, for all hosts and jobs alike, as the hosts"
            f" cannot have an /opt/ml of their own ({reason}). Let it use {instead}, or give --backend docker"
            " (docs/toolkit-run.md)"
        )
    return tuple(staged)


def entering(staged: Sequence[StagedHost]) -> tuple[StagedHost, ...]:
    """Return *staged* with the command that gives each host its own /opt/ml, which the kernel is known to allow."""
    return tuple(msgspec.structs.replace(host, enter=_enter(host.setup.base, host.shared)) for host in staged)


def _enter(base: Path, shared: Sequence[SharedFolder] = ()) -> tuple[str, ...]:
    """Return the start of a host's command line. *shared* folders become mounts, which can be read-only: the places of
    their links get empty folders."""
    words = [sys.executable, "-I", "-S", str(MOUNTS), str(base)]
    for folder in shared:
        folder.target.unlink()
        folder.target.mkdir()
        words += ["--shared", "rw" if folder.writable else "ro", str(folder.source), str(folder.target)]
    return tuple(words)


def _reason_needed(job_file: JobFile) -> str:
    """Return why /opt/ml must not be covered: the job uses a file below the machine's own. "" if it may be covered."""
    channels = (channel.folder for channel in job_file.channels if not channel.uri)
    needed = [job_file.run.job_dir, job_file.checkpoints, *channels]
    needed += [Path(sys.prefix), Path(sys.base_prefix), MOUNTS]
    target = BASE.resolve()
    below = (path for path in needed if path is not None and path.resolve().is_relative_to(target))
    return next((f"{path} lies below it" for path in below), "")


def reason_refused(base: Path) -> str:
    """Return why the kernel or its settings do not allow a host its own /opt/ml, "" if they do."""
    try:
        done = subprocess.run(
            _enter(base), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


def _mentions(job_file: JobFile) -> Iterator[tuple[str, str]]:
    """Yield (place, path) for each mention of /opt/ml in the source's files, the hyperparameters and the
    environment."""
    values_by_kind = {"hyperparameter": job_file.hyperparameters, "env": job_file.environment}
    for kind, values in values_by_kind.items():
        for name, value in values.items():
            if isinstance(value, str) and value.startswith(f"{BASE}/"):
                yield f"{kind} {name}", value
    for name, path in list_content(job_file).files.items():
        try:
            content = path.read_bytes() if path.stat().st_size <= LOOKED_AT_BYTES else b""
        except OSError:
            continue
        for number, line in enumerate(content.split(b"\n"), 1):
            match = LITERAL.search(line.partition(b"#")[0])
            # os.environ.get("SM_MODEL_DIR", "/opt/ml/model") is correct.
            if match and b"SM_" not in line:
                yield f"{name}:{number}", os.fsdecode(match[0])
