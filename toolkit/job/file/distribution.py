"""The `distribution` of a job file: a name, or the dictionary that SageMaker's SDK takes. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.job.file.options import Origin, Positive
from toolkit.job.strategy import PROCESSES, STRATEGIES, Strategy, StrategyName
from toolkit.records import Record, convert

NAMES: dict[str, StrategyName] = {name: strategy for strategy, row in STRATEGIES.items() for name in row.names}
GROUPS = "instance_groups"
_AS_RANKS = "Its script runs under torch_distributed, which starts one rank for each GPU: {}"
# What is no distribution, and what to give in its place.
POINTERS = {
    "deepspeed": _AS_RANKS.format("with deepspeed.initialize in it, as the launcher `deepspeed` starts it"),
    "accelerate": _AS_RANKS.format("Accelerator() and Trainer read its variables, as after `accelerate launch`"),
    "lightning": _AS_RANKS.format("Trainer(devices='auto') reads its variables"),
    "fsdp": _AS_RANKS.format("FSDP is the script's own"),
    "dataparallel": "SageMaker's data parallel library is smddp.",
    "smdistributed": 'It is a dictionary: \'{"smdistributed": {"dataparallel": {"enabled": true}}}\', or smddp.',
    "nccl": "That is a backend of torch_distributed, which the script chooses.",
    "gloo": "That is a backend of torch_distributed, which the script chooses.",
    "ray": "Ray's cluster is not started; a job of one host may run ray.init() itself, with none.",
}
SMDISTRIBUTED = "smdistributed"
ENABLED = "enabled"
# The keys below each strategy's path, as SageMaker's SDK knows them.
OPTIONS = {row.sdk_keys: row.sdk_options for row in STRATEGIES.values() if row.sdk_keys}
OPTIONS[SMDISTRIBUTED, "modelparallel"] = ("parameters",)
KEYS = {row.sdk_keys[0] for row in STRATEGIES.values() if row.sdk_keys} | {SMDISTRIBUTED, GROUPS}


class _Entry(Record, frozen=True, kw_only=True):
    """The entry of one strategy in the dictionary: the keys that are used."""

    enabled: bool = False
    processes_per_host: Positive | None = None
    custom_mpi_options: str = ""
    parameters: dict[str, Any] = {}


class _Smdistributed(Record, frozen=True, kw_only=True):
    dataparallel: _Entry = _Entry()
    modelparallel: _Entry = _Entry()


def strategy_of(
    distribution: str | Mapping[str, Any] | None, groups: set[str], origin: Origin
) -> tuple[Strategy, tuple[str, ...]]:
    """Return (how ranks are started, the instance groups that take part, () for the first); *groups*: all there are.

    Raises:
        ContractError: an unknown name, or a dictionary with an unknown key, a value of the wrong type or no such group.
    """
    if distribution is None:
        return Strategy(), ()
    if isinstance(distribution, str):
        return Strategy(name=_named(distribution, origin)), ()
    group_names = _checked(distribution, groups, origin)
    entries = {name: _entry(distribution, row.sdk_keys) for name, row in STRATEGIES.items() if row.sdk_keys}
    parallel = _entry(distribution, (SMDISTRIBUTED, "modelparallel"))
    name: StrategyName
    name, *ignored = [name for name, entry in entries.items() if entry.enabled] or ["script"]
    if parallel.enabled:
        _check_parallel(name, (name, *ignored), origin)
    entry = entries.get(name, _Entry())
    strategy = Strategy(
        name=name,
        ignored=tuple(ignored),
        processes_per_host=entry.processes_per_host,
        mpirun_options=entry.custom_mpi_options,
        model_parallel=parallel.parameters if parallel.enabled else None,
    )
    return strategy, group_names


def dictionary(strategy: Strategy, groups: tuple[str, ...]) -> dict[str, Any]:
    """Return the dictionary that `strategy_of` reads as *strategy* and *groups*."""
    distribution: dict[str, Any] = {}
    if strategy.name != "script":
        entry: dict[str, Any] = {"enabled": True}
        if strategy.processes_per_host:
            entry["processes_per_host"] = strategy.processes_per_host
        if strategy.mpirun_options:
            entry["custom_mpi_options"] = strategy.mpirun_options
        _put(distribution, STRATEGIES[strategy.name].sdk_keys, entry)
        for name in strategy.ignored:
            _put(distribution, STRATEGIES[name].sdk_keys, {"enabled": True})
    if strategy.model_parallel is not None:
        _put(distribution, (SMDISTRIBUTED, "modelparallel"), {"enabled": True, "parameters": strategy.model_parallel})
    return distribution | ({GROUPS: list(groups)} if groups else {})


def _check_parallel(name: StrategyName, enabled: tuple[str, ...], origin: Origin) -> None:
    source = f"{origin.of('distribution')}.{SMDISTRIBUTED}"
    if "smddp" in enabled:
        raise ContractError(
            "expected modelparallel or dataparallel, found both enabled: the two libraries cannot be combined",
            where=source,
            hint="Replicas of a partitioned model average their gradients by themselves: remove dataparallel.",
        )
    if STRATEGIES[name].launcher not in ("mpi", "torchrun"):
        raise ContractError(
            "expected mpi or torch_distributed beside modelparallel, to start its ranks, "
            f"found {STRATEGIES[name].names[0]}",
            where=source,
            hint='For example "mpi": {"enabled": true, "processes_per_host": 2}.',
        )


def _named(text: str, origin: Origin) -> StrategyName:
    name = text.lower().replace("-", "_")
    if name not in NAMES:
        expected = f"expected one of {', '.join(NAMES)}, found {text!r}"
        hint = POINTERS.get(name, "") or did_you_mean(text, NAMES)
        raise ContractError(expected, where=origin.of("distribution"), hint=hint)
    return NAMES[name]


def _checked(distribution: Mapping[str, Any], groups: set[str], origin: Origin) -> tuple[str, ...]:
    """Return the groups that *distribution* names, after a check of all its keys and values."""
    source = origin.of("distribution")
    _check_keys(distribution, KEYS, source)
    for key, value in distribution.items():
        kind: Any = {GROUPS: tuple[str, ...], SMDISTRIBUTED: _Smdistributed}.get(key, _Entry)
        try:
            convert(value, kind, "")
        except ContractError as error:
            path, _, message = error.message.rpartition(": ")
            raise ContractError(message, where=f"{source}.{key}{path.removeprefix('$')}") from None
    for keys, options in OPTIONS.items():
        entry: Any = distribution
        for depth, key in enumerate(keys):
            if key not in entry:
                break
            entry = entry[key]
            if depth < len(keys) - 1:
                _check_keys(entry, {path[depth + 1] for path in OPTIONS if path[0] == key}, f"{source}.{key}")
        else:
            _check_entry(entry, options, f"{source}.{'.'.join(keys)}")
    group_names = tuple(distribution.get(GROUPS, ()))
    for name in group_names:
        if name not in groups:
            expected = f"expected {', '.join(sorted(groups))}, found {name!r}"
            raise ContractError(expected, where=f"{source}.{GROUPS}")
    return group_names


def _check_keys(entry: Mapping[str, Any], keys: set[str], source: str) -> None:
    """Raise ContractError for a key of *entry* that is none of *keys*: it would be ignored."""
    for key in entry:
        if key not in keys:
            raise ContractError(
                f"expected keys among {', '.join(sorted(keys))}, found {key!r}",
                where=source,
                hint=did_you_mean(key, keys),
            )


def _check_entry(entry: Mapping[str, Any], options: tuple[str, ...], source: str) -> None:
    """Check what the dictionary says of one strategy; SageMaker's SDK ignores what it does not know."""
    if PROCESSES in entry and PROCESSES not in options:
        raise ContractError(
            f"expected no {PROCESSES}, found it: SageMaker's SDK ignores it here and starts one rank for each GPU",
            where=source,
            hint="Give the number as --processes-per-host, processes-per-host in the job file.",
        )
    _check_keys(entry, {ENABLED, *options}, source)
    if ENABLED not in entry:
        raise ContractError(
            f"expected the key {ENABLED}, found none: nothing would be started by it",
            where=source,
            hint=f'Write "{ENABLED}": true, or remove the entry.',
        )


def _entry(distribution: Mapping[str, Any], keys: tuple[str, ...]) -> _Entry:
    entry: Any = distribution
    for key in keys:
        entry = entry.get(key, {})
    return msgspec.convert(entry, _Entry)


def _put(distribution: dict[str, Any], keys: tuple[str, ...], entry: dict[str, Any]) -> None:
    for key in keys[:-1]:
        distribution = distribution.setdefault(key, {})
    distribution[keys[-1]] = entry
