"""The system monitor beside a job, as `train` starts it."""

import json
import os

import numpy
import pytest

from tests.train.base import Base
from tests.train.live import gone, live
from toolkit.series import monitor_document, sample_reader, step_records

# Burns a core until the monitor has taken some ten samples of this rank.
SAMPLED = """
import glob, os, time
here = os.environ["SM_OUTPUT_DIR"] + "/monitor"
def sampled():
    return sum(os.stat(p).st_size for p in glob.glob(here + "/samples/*") if b"rank/0/" in open(p, "rb").read())
ends_s, before = time.monotonic() + 60, sampled()
while sampled() < before + 5000 and time.monotonic() < ends_s:
    sum(range(10000))
"""
# The pid of this job's monitor, None if there is none.
FINDS = """
import glob, os, signal, time
def monitor():
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            if os.environ["SAGEMAKER_BASE_DIR"].encode() in open(folder + "/environ", "rb").read():
                if b"toolkit.monitor" in open(folder + "/cmdline", "rb").read():
                    return int(folder[6:])
        except OSError:
            pass
"""
KILLS = """
os.kill(monitor(), signal.SIGKILL)
while monitor() is not None:
    time.sleep(0.01)
print("no monitor", flush=True)
"""
# Waits until the monitor catches SIGTERM, so that it will write its end.
READY = """
def caught():
    status = open(f"/proc/{monitor()}/status").read() if monitor() else ""
    return status and int(status.partition("SigCgt:")[2].split()[0], 16) >> signal.SIGTERM - 1 & 1
ends_s = time.monotonic() + 60
while not caught() and time.monotonic() < ends_s:
    time.sleep(0.01)
"""


def test_a_job_with_the_monitor_leaves_samples_of_its_rank_and_says_what_was_measured(base: Base) -> None:
    base.program(SAMPLED)

    done = base.train(TOOLKIT_MONITOR="1", TOOLKIT_MONITOR_INTERVAL_S="0.1")

    assert done.status == 0, done
    samples = sample_reader.read(base.output / "monitor/samples")
    names = {column.name for column in samples.columns}
    assert {"cpu/all/used_percent", "memory/container/used_bytes", "rank/0/cpu_percent"} <= names
    assert numpy.nanmax(samples.series("rank/0/cpu_percent").high) > 10
    about = monitor_document.read(base.output / "monitor/monitor.json")
    assert about is not None
    assert (about.host, about.interval_s, about.attempt, about.notes) == ("algo-1", 0.1, 1, ())
    assert about.end_s is not None
    assert about.machine.cores == len(os.sched_getaffinity(0))
    assert about.own.samples >= 2
    assert "monitor:" not in done.log


def test_without_the_setting_nothing_is_measured(base: Base) -> None:
    base.program("import os; assert 'TOOLKIT_STEP_TIMES' not in os.environ")

    done = base.train()

    assert done.status == 0, done
    assert not (base.output / "monitor").exists()


def test_the_job_goes_on_if_the_monitor_is_killed(base: Base) -> None:
    base.program(SAMPLED + FINDS + KILLS)

    done = base.train(TOOLKIT_MONITOR="1", TOOLKIT_MONITOR_INTERVAL_S="0.1")

    assert done.status == 0, done
    assert "no monitor" in done.log
    assert "monitor was ended by SIGKILL, not by the toolkit: from now on the job has no samples, steps" in done.log
    assert done.outcome["status"] == "succeeded"
    assert len(sample_reader.read(base.output / "monitor/samples").columns) > 10


def test_the_job_goes_on_if_the_monitor_cannot_write(base: Base) -> None:
    base.output.mkdir(parents=True)
    (base.output / "monitor").write_text("in the way")
    base.program(FINDS + READY)

    done = base.train(TOOLKIT_MONITOR="1")

    assert done.status == 0, done
    assert f"{base.output}/monitor" in done.log
    assert done.succeeded


def test_each_attempt_is_measured_and_its_heartbeats_are_steps(base: Base) -> None:
    base.program(
        "from toolkit import status\nfor step in (1, 2): status.heartbeat(step)\n"
        f"{SAMPLED}\nraise SystemExit(os.environ['TOOLKIT_RESTART_COUNT'] == '0')"
    )

    done = base.train(TOOLKIT_MONITOR="1", TOOLKIT_MONITOR_INTERVAL_S="0.1", TOOLKIT_RESTARTS="1")

    assert done.status == 0, done
    about = monitor_document.read(base.output / "monitor/monitor.json")
    assert about is not None
    assert about.attempt == 2
    table = step_records.read(base.output / "monitor/steps")
    assert {(int(rank), int(attempt)) for rank, attempt in zip(table.rank, table.attempt, strict=True)} == {
        (0, 1),
        (0, 2),
    }


@pytest.mark.torch
def test_the_steps_of_a_torch_job_are_measured(base: Base) -> None:
    base.program(
        SAMPLED
        + """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
    )

    done = base.train(TOOLKIT_MONITOR="1", TOOLKIT_MONITOR_INTERVAL_S="0.1")

    assert done.status == 0, done
    table = step_records.read(base.output / "monitor/steps")
    assert list(table.step) == list(range(1, 21))
    assert table.ranks == (0,)
    assert (table.backward_s > 0).all()


def test_profilerconfig_json_asks_for_the_monitor_the_debuggers_files_and_its_report(base: Base) -> None:
    base.document(
        "profilerconfig.json",
        {"S3OutputPath": "s3://b/p", "ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": {}},
    )
    base.program(SAMPLED)

    done = base.train()

    assert done.status == 0, done
    files = list((base.output / "profiler/system/incremental").glob("*/*.algo-1.json"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert "CPUUtilization" in {line["Dimension"] for line in lines}
    assert {line["NodeId"] for line in lines} == {"algo-1"}
    assert set(lines[0]) == {"Type", "Name", "Dimension", "Value", "NodeId", "Timestamp"}
    (report,) = (base.output / "rule-output").glob("ProfilerReport-*/profiler-output")
    assert "<h1>" in (report / "profiler-report.html").read_text()
    usage = json.loads((report / "profiler-reports/OverallSystemUsage.json").read_text())
    assert usage["Details"]["algo-1"]["CPU"]["used_percent"]["max"] > 0
    assert "rule-output" not in done.log


# Runs for two and a half seconds after the Debugger's first file was begun.
OUTLASTS = """
import glob, os, time
def begun():
    return glob.glob(os.environ["SM_OUTPUT_DIR"] + "/profiler/system/incremental/*/*")
ends_s = time.monotonic() + 60
while not begun() and time.monotonic() < ends_s:
    time.sleep(0.01)
time.sleep(2.5)
"""


def test_the_debuggers_files_end_after_cpuprofilingduration_and_the_monitor_goes_on(base: Base) -> None:
    parameters = {"CPUProfilingDuration": "1", "SMPFileRotationSecs": "600"}
    config = {"S3OutputPath": "s3://b/p", "ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": parameters}
    base.document("profilerconfig.json", config)
    base.program(OUTLASTS)

    done = base.train()

    assert done.status == 0, done
    (file,) = (base.output / "profiler/system/incremental").glob("*/*.algo-1.json")
    times_s = [json.loads(line)["Timestamp"] for line in file.read_text().splitlines()]
    span = sample_reader.read(base.output / "monitor/samples").span()
    assert span is not None
    assert 0 < max(times_s) - min(times_s) <= 1.0
    assert span[1] - max(times_s) > 1.0


# Says what the monitor would have found, and saves when it is asked to stop.
STOPPED = """
import json, os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
found = {"rule": "LossNotDecreasing", "text": "loss stays at 2.3", "start_s": 1, "end_s": 2, "action": "stop"}
os.makedirs(os.environ["SM_OUTPUT_DIR"] + "/monitor", exist_ok=True)
with open(os.environ["SM_OUTPUT_DIR"] + "/monitor/findings.jsonl", "a") as file:
    file.write(json.dumps(found) + chr(10))
while True:
    time.sleep(0.1)
"""


def test_a_finding_with_the_action_stop_ends_the_job_early_and_well(base: Base) -> None:
    base.program(STOPPED)

    done = base.train(TOOLKIT_MONITOR="1")

    assert b"saved" in done.stdout, done
    assert done.outcome["status"] == "stopped"
    assert done.outcome["cause"]["message"] == "stopped by rule LossNotDecreasing (SIGTERM); the script ended with 0"
    assert "finding LossNotDecreasing: loss stays at 2.3" in done.log
    assert "SIGTERM for rule LossNotDecreasing and passed on" in done.log


# Freezes its monitor, as a driver or a dead server may, and saves when it is asked to stop.
FREEZES = """
import sys
pid = monitor()
os.kill(pid, signal.SIGSTOP)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"frozen {pid}", flush=True)
while True:
    time.sleep(0.05)
"""


def test_a_monitor_that_no_longer_runs_does_not_delay_a_stop(base: Base) -> None:
    base.program(FINDS + READY + FREEZES)

    with live(base, TOOLKIT_MONITOR="1", TOOLKIT_GRACE_S="300") as running:
        running.until(b"frozen")
        running.signal()
        done = running.end()  # Within its 60 s: not after the script's grace.

    assert done.status == 0, done
    assert gone(int(done.stdout.split()[1]))
