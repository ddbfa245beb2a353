"""Jobs as values, for tests of plans and verdicts; they contain nothing of this machine."""

from pathlib import Path
from typing import Any

import msgspec

from toolkit.job.base_folders import below
from toolkit.job.cluster import Cluster, Group
from toolkit.job.documents.sagemaker_variables import for_script
from toolkit.job.job import Folders, Job, Script
from toolkit.job.machine import Machine
from toolkit.job.spec import JobSpec, PlatformValues
from toolkit.job.strategy import Strategy, StrategyName
from toolkit.settings import Settings

BASE = Path("/opt/ml")
SCRATCH = Path("/tmp/toolkit-0-abc")
PYTHON = "/usr/bin/python3"
# `train`'s environment in a small image; goldens show the differences from it.
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
# What `job_of` takes for the job's spec.
SPEC_FIELDS = ("name", "entry", "plugin", "source", "channels", "metric_definitions", "platform_values")


def folders(base: Path = BASE, scratch: Path = SCRATCH) -> Folders:
    return msgspec.structs.replace(below(str(base), {}), scratch=scratch)


def script_of(entry: str = "train.py", kind: Any = "program", **more: Any) -> Script:
    return Script(entry=entry, kind=kind, folder=BASE / "code", **more)


def job_of(
    strategy: StrategyName = "script",
    *,
    hosts: tuple[str, ...] = ("algo-1",),
    current: str = "algo-1",
    taking_part: tuple[str, ...] | None = None,
    groups: tuple[Group, ...] = (),
    addresses: dict[str, str] | None = None,
    interface: str = "eth0",
    per_host: int | None = None,
    gpus: int = 0,
    neurons: int = 0,
    machine: dict[str, Any] | None = None,
    settings: Settings | None = None,
    environ: dict[str, str] | None = None,
    hyperparameters: dict[str, Any] | None = None,
    script: Script | None = None,
    **more: Any,
) -> Job:
    """Return the job of host *current*. With a strategy, all hosts take part unless *taking_part* is given."""
    everybody = hosts if strategy != "script" else ()
    in_spec = {name: more.pop(name) for name in SPEC_FIELDS if name in more}
    spec = JobSpec(
        **{
            "name": "a-job",
            "entry": "train.py",
            "hyperparameters": {"epochs": 3, "name": "two words"} if hyperparameters is None else hyperparameters,
            "platform_values": PlatformValues(variables=for_script("a-job", "")),
            **in_spec,
        }
    )
    return Job(
        spec=spec,
        settings=settings or Settings(),
        cluster=Cluster(
            current=current,
            hosts=hosts,
            taking_part=everybody if taking_part is None else taking_part,
            groups=groups,
            addresses=addresses or {},
            interface=interface,
        ),
        machine=Machine(
            cpus=4,
            cpus_total=8,
            memory_bytes=1 << 34,
            **{
                "accelerator": "nvidia" if gpus else "neuron" if neurons else "none",
                "accelerators": gpus or neurons,
                "interfaces": ("eth0", "lo"),
                "route_interface": "eth0",
                **(machine or {}),
            },
        ),
        folders=folders(),
        strategy=Strategy(name=strategy, processes_per_host=per_host),
        environ={**ENVIRON, **(environ or {})},
        interpreter=PYTHON,
        script=script or script_of(),
        stop_within_s=120.0,
        **{"stopped_is_success": True, **more},
    )
