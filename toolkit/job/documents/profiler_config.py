"""Reads the settings of the system monitor from profilerconfig.json.

Its values are texts, in two styles: `LocalPath`, `RotateMaxFileSizeInBytes` and `RotateFileCloseIntervalInSeconds` of
Debugger's FrameworkProfile, or `CPUProfilingDuration` and `SMPFileRotationSecs` of Profiler (SageMaker's Python SDK
2.257, sagemaker/debugger, seen 2026-11). The document is not the user's own, so a wrong value gives a warning and its
default. It is never evaluated as Python, as Debugger's own library does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.job.base_folders import BASE
from toolkit.job.documents.input_config import ProfilerConfig
from toolkit.job.job import Folders
from toolkit.job.monitor import INTERVAL_S, LONGEST_S, SHORTEST_S, DebuggerFiles, Monitor
from toolkit.paths import can_be_a_path

FILE = "profilerconfig.json"
LOCAL_PATH = "/opt/ml/output/profiler"
Warn = Callable[[str], None]


def monitor(config: ProfilerConfig | None, folders: Folders, warn: Warn) -> Monitor | None:
    """Return the monitor that *config* asks for, None without a document or with DisableProfiler."""
    if config is None or config.disable_profiler:
        return None
    values = config.profiling_parameters or {}
    number = _Numbers(values, warn)
    duration_s = number.at_least(1, "CPUProfilingDuration")
    usual = DebuggerFiles(folder=_folder(values, folders, warn))
    return Monitor(
        interval_s=_interval_s(config.profiling_interval_in_milliseconds, warn),
        debugger=DebuggerFiles(
            folder=usual.folder,
            most_bytes=int(number.at_least(4096, "RotateMaxFileSizeInBytes") or usual.most_bytes),
            most_s=number.at_least(1, "RotateFileCloseIntervalInSeconds", "SMPFileRotationSecs") or usual.most_s,
            sampled_s=duration_s,
        ),
        parameters=dict(values),
    )


def _interval_s(interval_ms: int | float | str | None, warn: Warn) -> float:
    if interval_ms is None:
        return INTERVAL_S
    try:
        interval_s = float(interval_ms) / 1000
    except ValueError:
        interval_s = float("nan")
    if SHORTEST_S <= interval_s <= LONGEST_S:
        return interval_s
    warn(
        f"{FILE}: $.ProfilingIntervalInMilliseconds: expected a number, {SHORTEST_S * 1000:,.0f} to"
        f" {LONGEST_S * 1000:,.0f}, found {str(interval_ms)[:40]!r}; using {INTERVAL_S * 1000:.0f}"
    )
    return INTERVAL_S


def _folder(values: dict[str, Any], folders: Folders, warn: Warn) -> Path:
    """Return LocalPath; one below /opt/ml is moved below the base."""
    path = Path(str(values.get("LocalPath") or LOCAL_PATH))
    if not path.is_absolute() or ".." in path.parts or not can_be_a_path(str(path)):
        warn(f"{FILE}: $.ProfilingParameters.LocalPath: expected an absolute path, found {str(path)[:60]!r}")
        path = Path(LOCAL_PATH)
    return folders.base / path.relative_to(BASE) if path.is_relative_to(BASE) else path


class _Numbers:
    """The numbers among *values*, which are texts."""

    def __init__(self, values: dict[str, Any], warn: Warn) -> None:
        self._values = values
        self._warn = warn

    def at_least(self, least: float, *names: str) -> float | None:
        """Return the first of *names* that is given; None if none is, or if it is no number from *least* on."""
        name = next((name for name in names if self._values.get(name) not in (None, "")), None)
        if name is None:
            return None
        try:
            value = float(self._values[name])
        except (TypeError, ValueError):
            value = float("nan")
        if least <= value < 1e15:
            return value
        self._warn(
            f"{FILE}: $.ProfilingParameters.{name}: expected a number, {least} or more, found"
            f" {str(self._values[name])[:40]!r}; using the default"
        )
        return None
