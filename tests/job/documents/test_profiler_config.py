"""profilerconfig.json configures the system monitor."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.platforms.sagemaker.test_read_job import Base
from tests.train.platforms.sagemaker.test_read_job import base as base  # The fixture.
from toolkit.job.monitor import DebuggerFiles, Monitor
from toolkit.settings import Settings

# As SageMaker's Python SDK 2.257 writes them for FrameworkProfile() and for Profiler(cpu_profiling_duration=3600).
OLD = {
    "S3OutputPath": "s3://bucket/prefix",
    "ProfilingIntervalInMilliseconds": 1000,
    "ProfilingParameters": {
        "LocalPath": "/opt/ml/output/profiler",
        "RotateMaxFileSizeInBytes": "1048576",
        "RotateFileCloseIntervalInSeconds": "30",
        "FileOpenFailThreshold": "50",
        "DetailedProfilingConfig": '{"StartStep": 5, "NumSteps": 1}',
    },
}
NEW = {
    "S3OutputPath": "s3://bucket/prefix",
    "ProfilingParameters": {
        "CPUProfilingDuration": "3600",
        "SMPFileRotationSecs": "600",
        "DetailedProfilingConfig": "",
    },
    "DisableProfiler": False,
}


def read_monitor(base: Base, config: Any, **environ: Any) -> Monitor | None:
    return base.write(profilerconfig=config).read(settings=Settings(**environ)).monitor


def test_without_the_document_no_monitor_runs(base: Base) -> None:
    assert base.read().monitor is None
    assert base.read(settings=Settings(monitor="1")).monitor == Monitor()


def test_the_document_starts_the_monitor_with_debuggers_files(base: Base) -> None:
    folder = base.folder / "output/profiler"

    old, new = read_monitor(base, OLD), read_monitor(base, NEW)

    assert old is not None
    assert (old.interval_s, old.debugger) == (1.0, DebuggerFiles(folder=folder, most_bytes=1 << 20, most_s=30.0))
    assert old.parameters == OLD["ProfilingParameters"]
    assert new is not None
    assert (new.interval_s, new.debugger) == (0.5, DebuggerFiles(folder=folder, most_s=600.0, sampled_s=3600.0))
    assert base.heard() == ""


def test_an_empty_document_asks_for_the_defaults(base: Base) -> None:
    monitor = read_monitor(base, {})

    assert monitor == Monitor(debugger=DebuggerFiles(folder=base.folder / "output/profiler"))


def test_the_document_or_the_setting_turns_the_monitor_off_and_the_setting_wins(base: Base) -> None:
    assert read_monitor(base, {**OLD, "DisableProfiler": True}) is None
    assert read_monitor(base, {**OLD, "DisableProfiler": True}, monitor="on") == Monitor()
    assert read_monitor(base, OLD, monitor="0") is None
    assert read_monitor(base, OLD, monitor="off") is None


def test_the_settings_interval_wins_over_the_documents(base: Base) -> None:
    monitor = read_monitor(base, OLD, monitor_interval_s=0.1)

    assert monitor is not None
    assert monitor.interval_s == 0.1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ProfilingIntervalInMilliseconds": 50}, "expected a number, 100 to 60,000, found '50'; using 500"),
        ({"ProfilingIntervalInMilliseconds": "fast"}, "expected a number, 100 to 60,000, found 'fast'; using 500"),
        ({"ProfilingParameters": {"LocalPath": "here"}}, "LocalPath: expected an absolute path, found 'here'"),
        ({"ProfilingParameters": {"LocalPath": "/opt/ml/../../etc"}}, "LocalPath: expected an absolute path"),
        ({"ProfilingParameters": {"LocalPath": "/tmp/\0"}}, r"LocalPath: expected an absolute path, found '/tmp/\x00'"),
        ({"ProfilingParameters": {"LocalPath": "/\ud800"}}, r"LocalPath: expected an absolute path, found '/\ud800'"),
        (
            {"ProfilingParameters": {"RotateMaxFileSizeInBytes": "__import__('os')"}},
            "RotateMaxFileSizeInBytes: expected a number, 4096 or more, found \"__import__('os')\"; using the default",
        ),
        ({"ProfilingParameters": {"CPUProfilingDuration": "-1"}}, "CPUProfilingDuration: expected a number, 1 or more"),
    ],
)
def test_a_wrong_value_draws_a_warning_and_its_default_holds(base: Base, config: dict[str, Any], message: str) -> None:
    monitor = read_monitor(base, config)

    assert monitor == Monitor(
        debugger=DebuggerFiles(folder=base.folder / "output/profiler"),
        parameters=config.get("ProfilingParameters", {}),
    )
    assert message in base.heard()


@pytest.mark.parametrize("content", ["[]x", json.dumps([1]), json.dumps({"DisableProfiler": "maybe"})])
def test_a_document_of_another_form_draws_a_warning_and_no_monitor_runs(base: Base, content: str) -> None:
    base.file("profilerconfig").write_text(content)

    assert base.read().monitor is None
    assert "continuing without the monitor" in base.heard()


def test_a_local_path_elsewhere_is_kept(base: Base, tmp_path: Path) -> None:
    monitor = read_monitor(base, {"ProfilingParameters": {"LocalPath": str(tmp_path / "here")}})

    assert monitor is not None
    assert monitor.debugger == DebuggerFiles(folder=tmp_path / "here")
