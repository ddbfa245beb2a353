"""Reads what profilerconfig.json asks of the system monitor.

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


def monitor(config: ProfilerConfig | None, places: Folders, warn: Warn) -> Monitor | None:
    """Return the monitor that *config* asks for, None without a document or with DisableProfiler."""
    if config is None or config.disable_profiler:
        return None
    given = config.profiling_parameters or {}
    number = _Numbers(given, warn)
    duration_s = number.at_least(1, "CPUProfilingDuration")
    usual = DebuggerFiles(folder=_folder(given, places, warn))
    return Monitor(
        interval_s=_interval_s(config.profiling_interval_in_milliseconds, warn),
        debugger=DebuggerFiles(
            folder=usual.folder,
            most_bytes=int(number.at_least(4096, "RotateMaxFileSizeInBytes") or usual.most_bytes),
            most_s=number.at_least(1, "RotateFileCloseIntervalInSeconds", "SMPFileRotationSecs") or usual.most_s,
            sampled_s=duration_s,
        ),
        parameters=dict(given),
    )


def _interval_s(asked_ms: int | float | str | None, warn: Warn) -> float:
    if asked_ms is None:
        return INTERVAL_S
    try:
        asked_s = float(asked_ms) / 1000
    except ValueError:
        asked_s = float("nan")
    if SHORTEST_S <= asked_s <= LONGEST_S:
        return asked_s
    warn(
        f"{FILE}: $.ProfilingIntervalInMilliseconds: expected a number, {SHORTEST_S * 1000:,.0f} to"
        f" {LONGEST_S * 1000:,.0f}, found {str(asked_ms)[:40]!r}; using {INTERVAL_S * 1000:.0f}"
    )
    return INTERVAL_S


def _folder(given: dict[str, Any], places: Folders, warn: Warn) -> Path:
    """Return LocalPath; one below /opt/ml is moved below the base."""
    asked = Path(str(given.get("LocalPath") or LOCAL_PATH))
    if not asked.is_absolute() or ".." in asked.parts or not can_be_a_path(str(asked)):
        warn(f"{FILE}: $.ProfilingParameters.LocalPath: expected an absolute path, found {str(asked)[:60]!r}")
        asked = Path(LOCAL_PATH)
    return places.base / asked.relative_to(BASE) if asked.is_relative_to(BASE) else asked


class _Numbers:
    """The numbers among *given*, which are texts."""

    def __init__(self, given: dict[str, Any], warn: Warn) -> None:
        self._given = given
        self._warn = warn

    def at_least(self, least: float, *names: str) -> float | None:
        """Return the first of *names* that is given; None if none is, or if it is no number from *least* on."""
        name = next((name for name in names if self._given.get(name) not in (None, "")), None)
        if name is None:
            return None
        try:
            value = float(self._given[name])
        except (TypeError, ValueError):
            value = float("nan")
        if least <= value < 1e15:
            return value
        self._warn(
            f"{FILE}: $.ProfilingParameters.{name}: expected a number, {least} or more, found"
            f" {str(self._given[name])[:40]!r}; using the default"
        )
        return None
