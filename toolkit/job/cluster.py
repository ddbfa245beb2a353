"""The hosts of a job: their names, which take part in the distribution, which one is the leader."""

from typing import Any

from toolkit.records import Record

# SageMaker's name for a job's only instance group.
HOMOGENEOUS = "homogeneousCluster"


class Group(Record, frozen=True, kw_only=True):
    """An instance group: hosts of one kind of machine (heterogeneous clusters)."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


class Cluster(Record, frozen=True, kw_only=True):
    """The hosts of a job, and which of them this is."""

    current: str
    hosts: tuple[str, ...]
    """All hosts in the documents' order."""
    taking_part: tuple[str, ...] = ()
    """The hosts of the distribution's groups; the first is the leader. (): none, or the distribution is not known
    yet."""
    groups: tuple[Group, ...] = ()
    current_group: str = HOMOGENEOUS
    """The instance group of this host."""
    distribution_groups: tuple[str, ...] = ()
    """The names of the groups whose hosts take part."""
    instance_type: str = "local"
    """The instance type of this host."""
    interface: str = "eth0"
    """The network interface to the other hosts; "": that of the default route, which a Job no longer leaves open."""
    topology: Any = None
    """SageMaker's description of the network, unchanged."""
    addresses: dict[str, str] = {}
    """The addresses of hosts that are not reached by name. A host of which only the number is known is listed with its
    own name, so that `train` does not wait for the name to resolve."""

    @property
    def takes_part(self) -> bool:
        """True if this host belongs to the distribution; a host outside it runs its script alone."""
        return self.current in self.taking_part

    @property
    def leader(self) -> str:
        """The first host of the distribution, in the documents' order (not the alphabet's)."""
        return self.taking_part[0] if self.taking_part else self.hosts[0]

    @property
    def is_leader(self) -> bool:
        return self.current == self.leader

    @property
    def size(self) -> int:
        """The number of hosts that take part, 1 for a host outside the distribution."""
        return len(self.taking_part) if self.takes_part else 1

    @property
    def rank(self) -> int:
        """This host's index among those that take part, 0 for a host outside the distribution."""
        return self.taking_part.index(self.current) if self.takes_part else 0

    def address(self, host: str) -> str:
        """Return the address given for *host*, else its name."""
        return self.addresses.get(host, host)
