"""This machine, as seen once at the start."""

from typing import Literal

from toolkit.records import Record


class Machine(Record, frozen=True, kw_only=True):
    """What was found here. `cpus` and `memory_bytes` respect cgroups and affinity, `cpus_total` ignores them.

    `route_interface`: the interface that leads to other hosts (None: not to be told).
    `programs`: which of the launchers' helpers are on PATH. `notes`: what looking went wrong at, for the log.
    """

    cpus: int
    cpus_total: int
    memory_bytes: int
    accelerator: Literal["none", "nvidia", "neuron"] = "none"
    accelerators: int = 0
    interfaces: tuple[str, ...] = ()
    route_interface: str | None = None
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"
    programs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        return self.accelerators if self.accelerator == "nvidia" else 0

    @property
    def neurons(self) -> int:
        return self.accelerators if self.accelerator == "neuron" else 0
