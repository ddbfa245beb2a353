"""Job files for tests, without their text."""

from pathlib import Path
from typing import Any

from toolkit.job.cluster import Group
from toolkit.job.file.distribution import GROUPS, strategy_of
from toolkit.job.file.job_file import JobFile, LocalRun
from toolkit.job.file.options import Origin

TWO = ("algo-1", "algo-2")


def job_file(
    *,
    source: Path = Path("/src"),
    script: Path | None = None,
    hosts: tuple[str, ...] = TWO,
    groups: tuple[Group, ...] = (),
    distribution: str | dict[str, Any] | None = None,
    requirements: Path | None = None,
    **more: Any,
) -> JobFile:
    """Return a job file; *more*: fields of it and of its LocalRun."""
    script = source / "train.py" if script is None else script
    groups = groups or (Group(name="homogeneousCluster", hosts=hosts, instance_type="local"),)
    group_names = set(distribution.get(GROUPS, ())) if isinstance(distribution, dict) else set()
    strategy, taking_part = strategy_of(
        distribution, {group.name for group in groups} | group_names, Origin(where="test")
    )
    local = {name: more.pop(name) for name in LocalRun.__struct_fields__ if name in more}
    return JobFile(
        **{
            "name": "job",
            "source": source,
            "entry": str(script.relative_to(source) if script.is_relative_to(source) else script),
            "groups": groups,
            "strategy": strategy,
            "distribution_groups": taking_part,
            "run": LocalRun(**{"job_dir": Path("/j"), **local}),
            "requirements": requirements,
            "hyperparameter_places": {name: f"hyperparameter {name}" for name in more.get("hyperparameters", ())},
            **more,
        }
    )
