"""Findings of the monitor while `train` runs a job: the attempt that they concern, and a rule that stops the job."""

import json
import subprocess
import sys
import time

from tests.train.base import Base
from tests.train.live import live
from toolkit.series import findings

# Each step of attempt 0 waits for its data for most of its time, as its own lines say; those of attempt 1 do not.
STARVED_THEN_HEALTHY = """
import glob, os, time
attempt = int(os.environ["TOOLKIT_RESTART_COUNT"])
ends_s = time.monotonic() + 60  # The monitor of this attempt measures by then.
while len(glob.glob(os.environ["SM_OUTPUT_DIR"] + "/monitor/samples/*")) <= attempt and time.monotonic() < ends_s:
    time.sleep(0.02)
# All steps come between two looks of the rule, so that it finds something as the ranks end.
for step in range(1, 41):
    wait_s = 0.08 if attempt == 0 else 0.001
    print(f"step={step} step_time=0.1 dataloader_time={wait_s}", flush=True)
if attempt == 0:
    raise RuntimeError("boom")
print("done", flush=True)
"""
DEFINITIONS = [
    {"Name": name, "Regex": rf"\b{name}=([-+0-9.enaif]+)"} for name in ("step", "step_time", "dataloader_time", "loss")
]
STOPS = json.dumps({"ExplodingTensor": {"action": "stop"}})
# Says that its loss is NaN, and saves for a minute when it is told to stop.
SAVES_LONG = """
import signal, time
def save(number, _):
    print(f"saving after {number}", flush=True)
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        time.sleep(0.05)
    print("saved", flush=True)
signal.signal(signal.SIGTERM, save)
while True:
    print("step=1 loss=nan", flush=True)
    time.sleep(0.1)
"""


def test_a_finding_of_an_attempt_neither_stops_the_next_one_nor_is_mixed_with_it(base: Base) -> None:
    base.program(STARVED_THEN_HEALTHY)
    base.document("metric-definition-regex.json", DEFINITIONS)
    rules = {"DataWait": {"action": "stop"}}

    done = base.train(
        TOOLKIT_MONITOR="1",
        TOOLKIT_MONITOR_INTERVAL_S="0.1",
        TOOLKIT_RESTARTS="1",
        TOOLKIT_PROFILER_RULES=json.dumps(rules),
    )

    assert done.status == 0, done
    assert done.outcome["status"] == "succeeded"
    assert b"done" in done.stdout
    written = findings.read(base.output / "monitor" / findings.NAME)
    assert [(finding.rule, finding.attempt) for finding in written] == [("DataWait", 0)]
    argv = [sys.executable, "-m", "toolkit", "report", str(base.output), "--format", "text"]
    page = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "DataWait (loader, host algo-1, attempt 0): " in page.replace("\n", " ")
    assert "attempt 1)" not in page
    assert page.count("Numbers of DataWait") == 1


def test_the_platforms_stop_after_a_rules_stop_leaves_the_script_its_grace_and_a_second_one_kills_at_once(
    base: Base,
) -> None:
    base.program(SAVES_LONG)
    base.document("metric-definition-regex.json", DEFINITIONS)

    with live(base, TOOLKIT_MONITOR="1", TOOLKIT_MONITOR_INTERVAL_S="0.1", TOOLKIT_PROFILER_RULES=STOPS) as running:
        running.until(b"saving after 15\n")
        time.sleep(1.2)  # Signals within a second are one request.
        running.signal()
        time.sleep(1.2)
        assert running.process.poll() is None
        running.signal()
        started_s = time.monotonic()
        done = running.end()

    assert time.monotonic() - started_s < 30, "the script saves for 60 s"
    assert b"saved" not in done.stdout
    assert (done.status, done.outcome["status"]) == (143, "stopped"), done
    assert done.outcome["cause"]["message"].startswith(
        "stopped by rule ExplodingTensor (SIGTERM); script killed by SIGKILL"
    )
    assert "SIGKILL came with a second signal" in done.outcome["cause"]["message"]
