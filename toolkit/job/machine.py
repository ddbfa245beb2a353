"""This machine, as seen once at the start."""

from typing import Literal

from toolkit.records import Record


class Machine(Record, frozen=True, kw_only=True):
    """What was found here. `interface` routes to the peers (None: not looked up), `cpus_total` ignores cgroups."""

    cpus: int
    cpus_total: int
    memory_bytes: int
    accelerator: Literal["none", "nvidia", "neuron"] = "none"
    accelerators: int = 0
    interfaces: tuple[str, ...] = ()
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"

    @property
    def gpus(self) -> int:
        return self.accelerators if self.accelerator == "nvidia" else 0

    @property
    def neurons(self) -> int:
        return self.accelerators if self.accelerator == "neuron" else 0
