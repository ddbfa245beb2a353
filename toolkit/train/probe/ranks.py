"""Finds the ranks that run on this machine, by the variables that `train` gives them."""

import pwd
from pathlib import Path

from toolkit.folders import as_absent, is_dir
from toolkit.records import Record

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class RunningHost(Record, frozen=True, kw_only=True):
    """The processes below one `train`: their status folder, their output folder, and their ranks.

    `traces`: they watch for requests to trace.
    """

    status: Path
    output: Path
    ranks: tuple[int, ...]
    traces: bool


def find_running_hosts(below: Path, proc: Path = Path("/proc")) -> tuple[RunningHost, ...]:
    """Return the hosts of jobs whose output is below *below*, of those that this user may look at."""
    environs_by_status: dict[Path, list[dict[str, str]]] = {}
    for process in proc.iterdir():
        environ = _environ(process) if process.name.isdigit() else {}
        status, output = environ.get("TOOLKIT_STATUS_FOLDER", ""), environ.get("SM_OUTPUT_DIR", "")
        if status and output and Path(output).is_relative_to(below) and is_dir(status, as_absent):
            environs_by_status.setdefault(Path(status), []).append(environ)
    return tuple(_host(status, environs) for status, environs in sorted(environs_by_status.items()))


def find_hidden_users(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the users who run a `train` whose processes this user may not look at, by name."""
    processes = (process for process in proc.iterdir() if process.name.isdigit())
    return tuple(sorted({_user(process) for process in processes if _is_hidden(process)}))


def _is_hidden(process: Path) -> bool:
    try:
        (process / "environ").read_bytes()
    except PermissionError:
        return _is_train(process)
    except OSError:
        return False  # It has ended.
    return False


def _is_train(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.rpartition(b"/")[2] == b"train" or word.startswith(b"toolkit.") for word in words)


def _user(process: Path) -> str:
    uid = process.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _host(status: Path, environs: list[dict[str, str]]) -> RunningHost:
    texts = [next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), "") for environ in environs]
    return RunningHost(
        status=status,
        output=Path(environs[0]["SM_OUTPUT_DIR"]),
        # A launcher's own process has no rank; the only process of a job has none, either.
        ranks=tuple(sorted({int(text) for text in texts if text})) or (0,),
        traces=any(
            environ.get("TOOLKIT_STEP_TIMES") == "on" or "TOOLKIT_PROFILE_WINDOW" in environ for environ in environs
        ),
    )


def _environ(process: Path) -> dict[str, str]:
    try:
        text = (process / "environ").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return {}  # It has ended, or is another user's.
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split("\0"))}
