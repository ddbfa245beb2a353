"""The rules that a job asks for: read from the request of SageMaker's SDK, a job file's table, or rulesconfig objects.

    [{"RuleConfigurationName": "...", "RuleParameters": {"rule_to_invoke": "CPUBottleneck", "threshold": "30"}}]
    {"CPUBottleneck": {"threshold": 30, "action": "stop"}, "ProfilerReport": {}}

Values may be text ("30"), as the SDK writes them. Pure.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolkit.diagnosis.rule import Configuration, DiagnosisRule
from toolkit.diagnosis.table import BY_NAME, RULES
from toolkit.errors import ContractError, UserError, did_you_mean
from toolkit.records import Record, convert
from toolkit.series.finding import FindingAction

REPORT = "ProfilerReport"
# The Debugger's rules on tensors, which are not collected (smdebug-rulesconfig 1.0.1).
ON_TENSORS = (
    "VanishingGradient",
    "DeadRelu",
    "PoorWeightInitialization",
    "SaturatedActivation",
    "WeightUpdateRatio",
    "AllZero",
    "UnchangedTensor",
    "TensorVariance",
    "ClassImbalance",
    "Confusion",
    "CheckInputImages",
    "NLPSequenceRatio",
    "SimilarAcrossRuns",
    "TreeDepth",
    "FeatureImportanceOverweight",
    "CreateXgboostReport",
)
KNOWN = (REPORT, *(rule.name for rule in RULES), *ON_TENSORS)
ACTIONS: tuple[FindingAction, ...] = ("record", "warn", "notify", "stop")
# Keys of a rule's parameters that say something else than a parameter.
_TO_INVOKE, _ACTION, _ACTION_JSON = "rule_to_invoke", "action", "action_json"
_SHAPE = (
    'Write a table of rules, as {"CPUBottleneck": {"threshold": 30}}, or a list as the SDK\'s'
    " ProfilerRuleConfigurations."
)


class RuleSelection(Record, frozen=True, kw_only=True):
    """The rules of a job, each once. `notes`: what the job asked for and does not get, a sentence each."""

    configurations: tuple[Configuration, ...]
    notes: tuple[str, ...] = ()


class _Entry(Record, frozen=True, kw_only=True):
    rule: str
    parameters: dict[str, Any]
    place: str


def read(document: Any, source: str) -> RuleSelection:
    """Return the rules in *document*, decoded JSON or a table; *source* names it in errors.

    None, or rules on losses alone, means ProfilerReport as well: all rules that need no choice.

    Raises:
        ContractError: another shape, an unknown rule or parameter (with the nearest), or a value that it cannot have.
    """
    entries = list(_entries(document, source))
    configurations: dict[str, Configuration] = {}
    notes: list[str] = []
    named_entries = [entry for entry in entries if entry.rule != REPORT]
    reports = [entry for entry in entries if entry.rule == REPORT]
    if not reports and not any(
        entry.rule in BY_NAME and BY_NAME[entry.rule].group != "loss" for entry in named_entries
    ):
        reports = [_Entry(rule=REPORT, parameters={}, place=source)]
    for entry in reports:
        configurations.update(_all(entry, source, notes))
    for entry in named_entries:
        if entry.rule in ON_TENSORS:
            notes.append(f"{entry.place}: {entry.rule} needs tensors, which are not collected: it does not run")
        else:
            configurations[entry.rule] = _configuration(
                BY_NAME[entry.rule], entry.parameters, entry.place, source, notes
            )
    return RuleSelection(configurations=tuple(configurations.values()), notes=tuple(notes))


def as_list(document: Any, source: str) -> tuple[dict[str, Any], ...]:
    """Return *document* as a list like the SDK's, checked: one {"RuleParameters": {...}} for each rule.

    Raises:
        ContractError: as `read`.
    """
    read(document, source)
    return tuple(
        {"RuleParameters": {_TO_INVOKE: entry.rule, **entry.parameters}} for entry in _entries(document, source)
    )


def of_rulesconfig(*configs: Any, action: Any = None) -> list[dict[str, Any]]:
    """Return rules made with smdebug_rulesconfig (`CPUBottleneck(...)`, `loss_not_decreasing()`) as `read` takes them.

    *action*: its StopTraining(), Email(...), SMS(...) or ActionList(...), for all of them.

    Raises:
        UserError: the package is not installed, or one of *configs* is not made with it.
    """
    try:
        import smdebug_rulesconfig as rulesconfig
        from smdebug_rulesconfig.profiler_rules.rules import ProfilerRuleBase
    except ImportError:
        hint = "Install the extra: pip install 'container-training-toolkit[debugger]'."
        raise UserError("expected the package smdebug-rulesconfig, found none", hint=hint) from None
    if action is not None and not rulesconfig.is_valid_action_object(action):
        raise UserError(f"expected an action of smdebug_rulesconfig, found {action!r}")
    added = {} if action is None else {_ACTION_JSON: action.serialize()}
    listed_rules = []
    for config in configs:
        inner = config.get("DebugRuleConfiguration") if isinstance(config, Mapping) else None
        if isinstance(config, ProfilerRuleBase):
            parameters = {name: value for name, value in config.rule_parameters.items() if value is not None}
        elif isinstance(inner, Mapping) and isinstance(inner.get("RuleParameters"), Mapping):
            parameters = dict(inner["RuleParameters"])
        else:
            raise UserError(f"expected a rule of smdebug_rulesconfig, found {config!r}")
        listed_rules.append({"RuleParameters": {**parameters, **added}})
    return listed_rules


def _entries(document: Any, source: str) -> Iterator[_Entry]:
    if document is None:
        return
    if isinstance(document, Mapping):
        as_list = next(
            (document[key] for key in ("ProfilerRuleConfigurations", "DebugRuleConfigurations") if key in document),
            None,
        )
        if as_list is not None:
            for key in ("ProfilerRuleConfigurations", "DebugRuleConfigurations"):
                yield from _entries(list(document.get(key) or ()), source)
            return
        for name, parameters in document.items():
            yield _entry(name, parameters, f"$.{name}", source)
        return
    if not isinstance(document, list | tuple):
        raise ContractError("$: expected a table or a list of rules", where=source, hint=_SHAPE)
    for index, rule in enumerate(document):
        place = f"$[{index}]"
        if isinstance(rule, str):
            yield _entry(rule, {}, place, source)
            continue
        parameters = rule.get("RuleParameters") if isinstance(rule, Mapping) else None
        if not isinstance(parameters, Mapping) or _TO_INVOKE not in parameters:
            message = f"{place}.RuleParameters: expected a table with the key {_TO_INVOKE!r}"
            raise ContractError(message, where=source, hint=_SHAPE)
        yield _entry(parameters[_TO_INVOKE], parameters, f"{place}.RuleParameters", source)


def _entry(name: Any, parameters: Any, place: str, source: str) -> _Entry:
    if not isinstance(parameters, Mapping):
        raise ContractError(f"{place}: expected a table of parameters, found {parameters!r}", where=source, hint=_SHAPE)
    # The SDK writes the class's name; rule names are compared without regard to case, as rulesconfig does.
    lowered = {name.lower(): name for name in KNOWN}
    rule = lowered.get(str(name).lower())
    if rule is None:
        message = f"{place}: expected a rule, found {name!r}"
        hint = did_you_mean(str(name), KNOWN) or f"The rules: {', '.join(KNOWN)}."
        raise ContractError(message, where=source, hint=hint)
    values = {str(key): value for key, value in parameters.items() if key != _TO_INVOKE}
    return _Entry(rule=rule, parameters=values, place=place)


def _all(entry: _Entry, source: str, notes: list[str]) -> dict[str, Configuration]:
    """Return the rules that ProfilerReport runs, with those of its parameters `<Rule>_<parameter>` that are theirs."""
    parts: dict[str, dict[str, Any]] = {}
    lowered = {rule.name.lower(): rule.name for rule in RULES}
    for key, value in entry.parameters.items():
        if key in (_ACTION, _ACTION_JSON):
            continue
        name, underscore, parameter = key.partition("_")
        rule = lowered.get(name.lower())
        if not underscore or rule is None:
            near = did_you_mean(name, (rule.name for rule in RULES))
            message = f"{entry.place}: expected <Rule>_<parameter>, found {key!r}"
            raise ContractError(message, where=source, hint=near or f"The rules: {', '.join(BY_NAME)}.")
        parts.setdefault(rule, {})[parameter.lower()] = value
    shared = {key: entry.parameters[key] for key in (_ACTION, _ACTION_JSON) if key in entry.parameters}
    return {
        rule.name: _configuration(rule, {**shared, **parts.get(rule.name, {})}, entry.place, source, notes)
        for rule in RULES
        if rule.default or rule.name in parts
    }


def _configuration(
    rule: DiagnosisRule, parameters: Mapping[str, Any], place: str, source: str, notes: list[str]
) -> Configuration:
    fields = [field.name for field in msgspec.structs.fields(rule.parameters)]
    values = {key: value for key, value in parameters.items() if key not in (_ACTION, _ACTION_JSON)}
    for key in values:
        if key not in fields:
            message = f"{place}: {rule.name}: expected one of the parameters {', '.join(fields)}, found {key!r}"
            raise ContractError(message, where=source, hint=did_you_mean(key, fields))
    typed: dict[str, Any] = {}
    for key, value in values.items():
        try:
            checked = convert({key: _plain(value)}, rule.parameters, source, strict=False)
        except ContractError as error:
            reason = error.message.partition(": ")[2]
            raise ContractError(f"{place}: {rule.name}: {key}: {reason}, found {value!r}", where=source) from None
        typed[key] = getattr(checked, key)
    action = _action(parameters, rule.name, place, source, notes)
    if typed.get("stop_training_on_fire"):
        action = "stop"
    return Configuration(
        rule=rule, parameters=rule.parameters(**typed), user_set=frozenset(typed), action=action or "warn"
    )


def _plain(value: Any) -> Any:
    """Return *value*, text for true and false as Python writes them, as JSON's. rulesconfig writes "None" for none."""
    return {"True": True, "False": False, "None": None}.get(value, value) if isinstance(value, str) else value


def _action(
    parameters: Mapping[str, Any], rule: str, place: str, source: str, notes: list[str]
) -> FindingAction | None:
    action_name = parameters.get(_ACTION)
    if action_name is not None:
        for action in ACTIONS:
            if action_name == action:
                return action
        message = f"{place}: {rule}: action: expected one of {', '.join(ACTIONS)}, found {action_name!r}"
        raise ContractError(message, where=source, hint=did_you_mean(str(action_name), ACTIONS))
    written = parameters.get(_ACTION_JSON)
    if not written:
        return None
    try:
        # rulesconfig escapes the quotes: {\"name\": \"stoptraining\"}.
        actions = json.loads(str(written).replace('\\"', '"'))
        names = [action["name"] for action in (actions if isinstance(actions, list) else [actions])]
    except (ValueError, TypeError, KeyError):
        message = f"{place}: {rule}: action_json: expected actions as rulesconfig writes them, found {written!r}"
        raise ContractError(message, where=source) from None
    notes += [
        f'{place}: {rule}: action {name!r} is not carried out; action "notify" sends a message to TOOLKIT_NOTIFY'
        for name in names
        if name != "stoptraining"
    ]
    return "stop" if "stoptraining" in names else None
