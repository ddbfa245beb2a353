from pathlib import Path
from typing import Any

import pytest

from toolkit import settings
from toolkit.errors import ContractError, UserError
from toolkit.job.spec import JobSpec
from toolkit.train.platforms.profiler_rules import profiler_rules

SDK = '[{"RuleConfigurationName": "r", "RuleParameters": {"rule_to_invoke": "CPUBottleneck", "threshold": "30"}}]'
LISTED = ({"RuleParameters": {"rule_to_invoke": "CPUBottleneck", "threshold": "30"}},)


def of(variable: str, job_file: Any = None) -> tuple[dict[str, Any], ...]:
    settings_read = settings.read({"TOOLKIT_PROFILER_RULES": variable} if variable else {})
    return profiler_rules(JobSpec(profiler_rules=job_file), settings_read)


def test_the_variable_holds_json_or_names_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[CPUBottleneck]\nthreshold = "30"\n')

    assert of(SDK) == LISTED
    assert of(str(file)) == LISTED


def test_the_variable_wins_over_the_job_file() -> None:
    assert of("", {"BusyCore": {}}) == ({"RuleParameters": {"rule_to_invoke": "BusyCore"}},)
    assert of(SDK, {"BusyCore": {}}) == LISTED


def test_a_job_that_says_nothing_has_no_rules_of_its_own() -> None:
    assert of("") == ()


@pytest.mark.parametrize(
    ("variable", "error", "message"),
    [
        ('{"CpuBottlenek": {}}', ContractError, "TOOLKIT_PROFILER_RULES: $.CpuBottlenek: expected a rule"),
        ("{", ContractError, "TOOLKIT_PROFILER_RULES: expected JSON, found a mistake"),
        ("nowhere.json", UserError, "nowhere.json: expected a document of rules (No such file or directory)"),
    ],
)
def test_a_mistake_is_said_with_its_place(variable: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        of(variable)

    assert message in str(raised.value)
