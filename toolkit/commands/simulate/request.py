"""Keeps what a job of `toolkit run` was asked for, as a job file in its folder: `toolkit rerun` makes a job of it.

It holds no secret: variables and hyperparameters that are one are left out, and have to be set again.
"""

from typing import Any

import msgspec

from toolkit import files
from toolkit.errors import PlatformError
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log
from toolkit.masking.text import MASK
from toolkit.records import encode
from toolkit.train.provenance.variables import holds_secret

REQUEST = "request.json"
# Options whose entries may be secrets.
TABLES = ("env", "hyperparameter")


def write(job_file: JobFile, user_environ: dict[str, str]) -> None:
    """Write JOBDIR/request.json.

    Raises:
        PlatformError: it cannot be written.
    """
    log = Log()
    log.hide({**user_environ, **job_file.environment})
    path = job_file.run.job_dir / REQUEST
    try:
        files.replace(path, encode({name: _keep(name, value, log) for name, value in job_file.request.items()}) + b"\n")
    except OSError as error:
        raise PlatformError(f"cannot be written ({error.strerror})", where=str(path)) from None


def _keep(option: str, value: Any, log: Log) -> Any:
    if option not in TABLES or not isinstance(value, dict):
        text = encode(value).decode()
        masked = log.mask(text)
        return value if masked == text else _decode(masked)
    return {name: entry for name, entry in value.items() if not holds_secret(name, entry, log.mask)}


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MASK  # A secret that JSON has escaped: nothing of the option is kept.
