"""The logger of framework packages, and its format."""

import logging
from collections.abc import Mapping, Sequence

from toolkit.job.plan import quoted
from toolkit.log import masked
from toolkit.rank.hook import plugin


def get_logger() -> logging.Logger:
    """Return the logger that sagemaker-training uses, by its name."""
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int, log_format: str = plugin.FORMAT) -> None:
    """Send log lines of *level* and above to stderr; from INFO on, those of AWS's libraries have the same level."""
    plugin.configure(level, log_format)


def log_script_invocation(
    cmd: Sequence[str] | str, env_vars: Mapping[str, str], logger: logging.Logger | None = None
) -> None:
    """Log a command and its variables. Secrets, recognised by their names, are masked."""
    command = cmd if isinstance(cmd, str) else " ".join(quoted(token) for token in cmd)
    variables = "\n".join(f"{name}={value}" for name, value in masked(env_vars).items())
    (logger or get_logger()).info(
        "Invoking user script\n\nEnvironment variables:\n\n%s\n\nCommand:\n\n%s\n", variables, command
    )
