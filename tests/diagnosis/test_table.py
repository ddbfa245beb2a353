"""docs/diagnosis.md names every rule with its parameters and defaults."""

import re
from pathlib import Path

import msgspec
import pytest

from toolkit.diagnosis.loss import OnLoss
from toolkit.diagnosis.rule import DiagnosisRule, RuleParameters
from toolkit.diagnosis.table import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text()
SHARED = {field.name for field in msgspec.structs.fields(OnLoss)}


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.parameters is not RuleParameters], ids=lambda rule: rule.name
)
def test_the_page_has_the_parameters_and_defaults(rule: DiagnosisRule) -> None:
    row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{rule.name}`")), "")
    assert row, f"docs/diagnosis.md has no row for {rule.name}"
    documented = dict(re.findall(r"`(\w+)` ([\d.]+|true|false|none)", row.split("|")[3]))

    parameters = [field for field in msgspec.structs.fields(rule.parameters) if field.name not in SHARED]
    parameters += [
        field
        for field in msgspec.structs.fields(rule.parameters)
        if field.name in documented and field not in parameters
    ]
    assert documented == {field.name: _shown(field.default) for field in parameters}
    assert ("(on request)" in row) is not rule.default


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value or "none") if value != 0 else "0"
