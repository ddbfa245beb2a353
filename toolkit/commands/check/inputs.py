"""Checks the job's inputs: channels, metric definitions and log rules."""

import stat
from pathlib import Path

from toolkit import files, folders
from toolkit.commands.check.result import CheckResult
from toolkit.errors import ContractError
from toolkit.job.channel import Channel
from toolkit.job.job import Job
from toolkit.metrics.definition import compile
from toolkit.metrics.guard import MatchGuard
from toolkit.metrics.warn import warnings
from toolkit.train.log_rules import document


def documents(job: Job) -> CheckResult:
    """Return a summary of the documents."""
    cluster = job.cluster
    hosts = f"{len(cluster.hosts)} host{'s' * (len(cluster.hosts) > 1)}"
    count = len(job.spec.hyperparameters)
    finding = f"{job.folders.config}: {hosts}, {count} hyperparameter{'s' * (count != 1)}, {job.strategy.name}"
    return CheckResult(name="documents", status="ok", found=finding)


def channels(job: Job) -> tuple[CheckResult, ...]:
    """Return whether the input of each channel exists."""
    empty = [channel for channel in job.spec.channels if not channel.uri and not _has_input(channel)]
    if empty:
        finding = "; ".join(f"{channel.name}: {_lack(channel)}" for channel in empty)
        advice = "Mount the input there, unless the platform still brings it"
        return (CheckResult(name="channels", status="warn", found=finding, advice=advice),)
    if not job.spec.channels:
        return ()
    finding = ", ".join(f"{channel.name} ({channel.mode})" for channel in job.spec.channels)
    return (CheckResult(name="channels", status="ok", found=finding),)


def metrics(job: Job) -> tuple[CheckResult, ...]:
    """Return whether the metric definitions are valid, and what they would misread."""
    if not job.spec.metric_definitions:
        return ()
    try:
        definitions = compile(job.spec.metric_definitions, "metric definitions")
    except ContractError as error:
        return (CheckResult(name="metrics", status="fail", found=str(error)),)
    with MatchGuard() as watch:
        warning_texts = [text for definition in definitions for text in warnings(definition, watch)]
    finding = "; ".join(warning_texts) or ", ".join(definition.name for definition in definitions)
    return (CheckResult(name="metrics", status="warn" if warning_texts else "ok", found=finding),)


def rules(job: Job, content: bytes | None) -> tuple[CheckResult, ...]:
    """Return whether the document of log rules is valid; *content*: the document, if the code has it."""
    path = job.settings.rules
    if path is None:
        return ()
    try:
        parsed_rules = document.read(files.read(path) if content is None else content, str(path))
    except ContractError as error:
        return (CheckResult(name="rules", status="fail", found=str(error)),)
    except OSError as error:
        reason = f"TOOLKIT_RULES: {path}: expected a readable file, found none ({error.strerror})"
        return (CheckResult(name="rules", status="fail", found=reason),)
    return (CheckResult(name="rules", status="ok", found=", ".join(rule.name for rule in parsed_rules)),)


def _has_input(channel: Channel) -> bool:
    if channel.mode == "Pipe":
        return _is_fifo(_first_fifo(channel))
    try:
        return bool(folders.names(channel.folder))
    except OSError:
        return False


def _lack(channel: Channel) -> str:
    if channel.mode == "Pipe":
        return f"no FIFO {_first_fifo(channel)}"
    try:
        folders.names(channel.folder)
        return f"{channel.folder} is empty" if folders.is_dir(channel.folder) else f"no folder {channel.folder}"
    except OSError as error:
        return f"{channel.folder} cannot be read ({error.strerror})"


def _first_fifo(channel: Channel) -> Path:
    return channel.folder.with_name(channel.folder.name + "_0")


def _is_fifo(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)  # Never opened: the first reader gets its content.
    except OSError:
        return False
