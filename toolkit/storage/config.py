"""What `train` tells the process that transfers files, and what that answers."""

from pathlib import Path
from typing import Literal

from toolkit.records import Record

Task = Literal["fetch", "restore", "watch", "finish"]


class Transfer(Record, frozen=True, kw_only=True):
    """One run of the process. `answer`: the file for its Answer. `state`: a folder that all runs of a job share.

    fetch: `uri` into the folder `folder`; `tells`: a line says every half minute how much has come. restore:
    `checkpoint_uri` into `checkpoints`. watch: upload `checkpoints` and `intermediate` until SIGTERM. finish: upload
    what is left; `clean`: the script ended by itself, at `ended_s`, in seconds since the epoch. `began_s`: when the
    script began. `rank`, `host`: of this host in the job.
    """

    task: Task
    answer: Path
    state: Path
    timeout_s: float
    uri: str = ""
    folder: Path | None = None
    tells: bool = False
    checkpoint_uri: str = ""
    checkpoints: Path | None = None
    intermediate_uri: str = ""
    intermediate: Path | None = None
    rank: int = 0
    host: str = ""
    clean: bool = True
    ended_s: float = 0.0
    began_s: float = 0.0


class Answer(Record, frozen=True, kw_only=True):
    """How it went: `message` "" for success, else an error with its exit code (75, 78 or 70). `path`: what was fetched.
    `said`: a line for the log."""

    message: str = ""
    where: str = ""
    hint: str = ""
    exit_code: int = 0
    path: Path | None = None
    said: str = ""
