"""Rules made with smdebug_rulesconfig, the package itself: its wheel lies in a folder of its own, since it also holds a
package `tests`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.diagnosis import configuration
from toolkit.errors import UserError

PACKAGE = "smdebug-rulesconfig==1.0.1"
SCRIPT = """
import json
from smdebug_rulesconfig import *
from smdebug_rulesconfig.profiler_rules.rules import Dataloader
from toolkit.diagnosis.configuration import of_rulesconfig

classes = (BatchSize, CPUBottleneck, Dataloader, GPUMemoryIncrease, IOBottleneck, LoadBalancing, LowGPUUtilization,
           MaxInitializationTime, OverallSystemUsage, StepOutlier)
print(json.dumps({
    "defaults": of_rulesconfig(*(each() for each in classes)),
    "loss": of_rulesconfig(*(each() for each in (loss_not_decreasing, overfit, overtraining, exploding_tensor,
                                                 stalled_training_rule))),
    "stop": of_rulesconfig(CPUBottleneck(threshold=30), action=ActionList(StopTraining("mine"), SMS("+4912345"))),
    "report": of_rulesconfig(ProfilerReport(CPUBottleneck_threshold=30)),
}))
"""


@pytest.fixture(scope="module")
def rulesconfig_documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    folder = tmp_path_factory.mktemp("rulesconfig")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-input")
    done = subprocess.run((*pip, "--target", str(folder), PACKAGE), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"no index has {PACKAGE}: {done.stderr.strip().splitlines()[-1]}")
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        (sys.executable, "-W", "ignore", "-c", SCRIPT),
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{root}:{folder}"},
    )
    assert ran.returncode == 0, ran.stderr
    findings: dict[str, list[dict[str, object]]] = json.loads(ran.stdout)
    return findings


def test_the_defaults_are_those_of_rulesconfig(rulesconfig_documents: dict[str, list[dict[str, object]]]) -> None:
    configurations = configuration.read(rulesconfig_documents["defaults"], "rules").configurations

    assert len(configurations) == 10
    assert [configuration.parameters for configuration in configurations] == [
        configuration.rule.parameters() for configuration in configurations
    ]


def test_its_rules_on_a_loss_and_its_actions_are_read(
    rulesconfig_documents: dict[str, list[dict[str, object]]],
) -> None:
    loss = configuration.read(rulesconfig_documents["loss"], "rules").configurations
    stop = configuration.read(rulesconfig_documents["stop"], "rules")
    report = {
        configuration.rule.name: configuration
        for configuration in configuration.read(rulesconfig_documents["report"], "rules").configurations
    }

    assert sum(configuration.rule.group == "loss" for configuration in loss) == 5
    assert stop.configurations[0].action == "stop"
    assert "'sms' is not carried out" in stop.notes[0]
    assert report["CPUBottleneck"].user_set == {"threshold"}


def test_without_the_package_the_error_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"container-training-toolkit\[debugger\]"):
        configuration.of_rulesconfig(object())
