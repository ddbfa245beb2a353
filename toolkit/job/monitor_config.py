"""The monitor's configuration, which `train` writes as a JSON file in the run's folder."""

from pathlib import Path
from typing import Literal

from toolkit.job.monitor import Monitor
from toolkit.records import Record
from toolkit.series.start_up import HostStart

NAME = "monitor-config.json"
RANKS = "ranks"


class MonitorConfig(Record, frozen=True, kw_only=True):
    """The configuration of a host's monitor for one attempt."""

    monitor: Monitor
    host: str
    """This host's name."""
    attempt: int
    """1, then more with each restart of the ranks."""
    output: Path
    """The job's output folder; the monitor writes to `folder`, output/monitor."""
    ranks: Path
    """The file in which `train` lists ranks as they start."""
    status: Path
    """The folder of the ranks' status pages and rings of steps."""
    cores: int
    """The number of cores of the host."""
    has_neighbours: bool = False
    """True: other hosts of the job run on the same machine."""
    gpus: tuple[str, ...] = ()
    """The command of the process that asks NVML, empty where the host has no NVIDIA GPU."""
    latest: Path | None = None
    """The file of the newest sample, for the exporters; None: there are none."""
    metrics_bytes: int = 0
    """The length of metrics.jsonl before this attempt."""
    start: HostStart = HostStart()
    """What `train` did before it started the ranks."""
    compares: Literal["host", "job", "none"] = "host"
    """The ranks that the rules of this monitor compare: of this "host" (which has no link to others), of the whole
    "job" (the leader), or "none" (the leader's monitor compares this host's)."""

    @property
    def folder(self) -> Path:
        return self.output / "monitor"

    @property
    def metrics(self) -> Path:
        return self.output / "metrics.jsonl"
