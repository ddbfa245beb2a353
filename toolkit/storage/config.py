"""The task that `train` gives to the process that transfers files, and the reply of that process."""

from pathlib import Path
from typing import Literal

from toolkit.records import Record

Task = Literal["fetch", "restore", "watch", "finish", "restore-packages", "store-packages"]
# How a checkpoint's files are stored: as parts named by their content, or each as one ordinary object.
CheckpointLayout = Literal["parts", "plain"]


class TransferTask(Record, frozen=True, kw_only=True):
    """One run of the process.

    fetch: fetch `uri` into `folder`. restore: restore `checkpoints` from `checkpoint_uri`. watch: upload `checkpoints`
    and `intermediate` until SIGTERM. finish: upload what these folders still have to upload. restore-packages: unpack
    the snapshot of packages below `uri`, if there is one. store-packages: store what was installed since.
    """

    task: Task
    answer: Path  # The file into which the process writes its TransferReply.
    state: Path  # A folder that all runs of a job share.
    timeout_s: float  # Of one request to the storage.
    uri: str = ""
    folder: Path | None = None
    key: str = ""  # restore-packages: of the requirements (train/source/snapshot_key.py).
    installer: str = ""  # store-packages: the program that installed them.
    reports_progress: bool = False  # fetch: write a line about the fetched bytes every half minute.
    checkpoint_uri: str = ""
    checkpoints: Path | None = None  # The checkpoint folder.
    checkpoint_layout: CheckpointLayout = "parts"  # How new versions of its files are stored.
    intermediate_uri: str = ""
    intermediate: Path | None = None  # The folder of intermediate outputs.
    rank: int = 0  # This host's rank in the job.
    host: str = ""  # This host's name.
    clean: bool = True  # finish: the script ended by itself.
    ended_s: float = 0.0  # finish: when the script ended, seconds since the epoch.
    began_s: float = 0.0  # When the script began, seconds since the epoch.


class TransferReply(Record, frozen=True, kw_only=True):
    """The result of one run."""

    message: str = ""  # "" for success, else the error.
    place: str = ""  # Where the error occurred.
    hint: str = ""  # How to correct the error.
    exit_code: int = 0  # 0 for success, else 75, 78 or 70.
    path: Path | None = None  # The file or folder that was fetched; of packages, the prefix that has them now.
    log_line: str = ""  # A line for the log.
