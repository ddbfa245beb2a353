"""What `train` tells the monitor: a JSON file in the run's folder."""

from pathlib import Path
from typing import Literal

from toolkit.job.monitor import Monitor
from toolkit.records import Record

NAME = "monitor-config.json"
RANKS = "ranks"


class MonitorConfig(Record, frozen=True, kw_only=True):
    """`host`: this host's name; `attempt`: 1, then more with each restart of the ranks.

    `output`: the job's output folder; the monitor writes to `folder`, output/monitor. `ranks`: the file in which
    `train` lists ranks as they start. `status`: the folder of the ranks' status pages and rings of steps.
    `metrics_bytes`: what metrics.jsonl held before this attempt.
    `latest`: where the newest sample goes, for the exporters; None: there are none.
    `compares`: the ranks that the rules of this monitor compare: of this "host" (which has no link to others), of the
    whole "job" (the leader), or "none" (the leader's monitor compares this host's).
    `gpus`: the command of the process that asks NVML, empty where the host has no NVIDIA GPU.
    """

    monitor: Monitor
    host: str
    attempt: int
    output: Path
    ranks: Path
    status: Path
    cores: int
    gpus: tuple[str, ...] = ()
    latest: Path | None = None
    metrics_bytes: int = 0
    compares: Literal["host", "job", "none"] = "host"

    @property
    def folder(self) -> Path:
        return self.output / "monitor"

    @property
    def metrics(self) -> Path:
        return self.output / "metrics.jsonl"
