from typing import Any

import pytest

from toolkit.diagnosis import configuration
from toolkit.diagnosis.rule import Configuration
from toolkit.diagnosis.table import RULES
from toolkit.errors import ContractError


def read(document: Any) -> dict[str, Configuration]:
    return {finding.rule.name: finding for finding in configuration.read(document, "rules.json").configurations}


def test_no_rules_mean_all_that_need_no_choice() -> None:
    assert read(None).keys() == {rule.name for rule in RULES if rule.default}


def test_the_request_of_the_sdk_is_read() -> None:
    configurations = read(
        [
            {
                "RuleConfigurationName": "starved",
                "RuleEvaluatorImage": "1234.dkr.ecr.eu-west-1.amazonaws.com/rules:latest",
                "RuleParameters": {
                    "rule_to_invoke": "CPUBottleneck",
                    "cpu_threshold": "80",
                    "patience": "50",
                    "action_json": '{\\"name\\": \\"stoptraining\\", \\"training_job_prefix\\": \\"mine\\"}',
                },
            }
        ]
    )

    assert list(configurations) == ["CPUBottleneck"]
    rule = configurations["CPUBottleneck"]
    assert getattr(rule.parameters, "cpu_threshold") == 80  # noqa: B009
    assert (rule.user_set, rule.action) == (frozenset({"cpu_threshold", "patience"}), "stop")


def test_the_parameters_of_profiler_report_reach_its_rules() -> None:
    configurations = read({"ProfilerReport": {"CPUBottleneck_threshold": "30", "cpubottleneck_patience": 10}})

    assert configurations.keys() == {rule.name for rule in RULES if rule.default}
    assert configurations["CPUBottleneck"].user_set == {"threshold", "patience"}


def test_mail_and_text_messages_are_said_to_be_ignored() -> None:
    actions = '[{\\"name\\": \\"email\\", \\"endpoint\\": \\"a@b.de\\"}, {\\"name\\": \\"stoptraining\\"}]'

    configurations = configuration.read({"CPUBottleneck": {"action_json": actions}}, "rules.json")

    assert configurations.configurations[0].action == "stop"
    assert configurations.notes == (
        "$.CPUBottleneck: CPUBottleneck: action 'email' is not carried out; action \"notify\" sends a message to"
        " TOOLKIT_NOTIFY",
    )


def test_a_rule_on_tensors_is_said_not_to_run() -> None:
    configurations = configuration.read([{"RuleParameters": {"rule_to_invoke": "VanishingGradient"}}], "rules.json")

    assert "VanishingGradient needs tensors, which are not collected" in configurations.notes[0]
    assert {finding.rule.name for finding in configurations.configurations} == {
        rule.name for rule in RULES if rule.default
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"CPUBottelneck": {}}, "rules.json: $.CPUBottelneck: expected a rule, found 'CPUBottelneck'. Did you mean"),
        (
            {"CPUBottleneck": {"gpu_treshold": 1}},
            "rules.json: $.CPUBottleneck: CPUBottleneck: expected one of the parameters scan_interval_us, threshold,"
            " gpu_threshold, cpu_threshold, patience, found 'gpu_treshold'. Did you mean gpu_threshold?",
        ),
        ({"CPUBottleneck": {"threshold": "much"}}, "CPUBottleneck: threshold: expected float, got str, found 'much'"),
        ({"CPUBottleneck": {"threshold": 120}}, "threshold: expected float <= 100.0, found 120"),
        ({"CPUBottleneck": {"action": "halt"}}, "action: expected one of record, warn, notify, stop, found 'halt'"),
        ({"ProfilerReport": {"CPUBotleneck_threshold": 1}}, "Did you mean CPUBottleneck?"),
        ({"ProfilerReport": {"threshold": 1}}, "expected <Rule>_<parameter>, found 'threshold'"),
        ([{"RuleConfigurationName": "x"}], "$[0].RuleParameters: expected a table with the key 'rule_to_invoke'"),
        (7, "expected a table or a list of rules"),
    ],
)
def test_a_mistake_is_said_with_its_place_and_the_nearest_name(document: Any, message: str) -> None:
    with pytest.raises(ContractError) as error:
        read(document)

    assert message in str(error.value)
