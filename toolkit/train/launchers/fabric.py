"""Pure: variables for communication libraries (NCCL, Gloo, libfabric), by the machine's devices. The caller lets the
user's values win."""

from toolkit.job.job import Job


def interface(job: Job) -> tuple[str | None, str]:
    """Return (the interface that reaches the other hosts, a note): the one that the documents name if this machine has
    it, else the one of the default route.

    The documents can be wrong: SageMaker's SDK v3 writes `ethwe` into local jobs, which no container has.
    """
    name = job.cluster.interface
    interfaces = job.machine.interfaces
    if not interfaces or name in interfaces:
        return name, ""
    missing = f"network interface {name} is not on this machine (it has {', '.join(interfaces)})"
    route = job.machine.route_interface
    if route is None:
        return None, f"{missing}: none is set"
    return route, f"{missing}: using {route}"


def variables(job: Job) -> dict[str, str]:
    """Return the variables for several hosts: the socket interface, a unique name for this host, and EFA's provider if
    there are EFA devices.

    NCCL assumes that ranks with the same gethostname() and kernel boot id are on one machine, and tries shared memory
    between them. Containers of one machine with the same host name look so. NCCL compares NCCL_HOSTID instead if it is
    set (NCCL's user guide, "Environment Variables").
    """
    if len(job.cluster.hosts) < 2:
        return {}
    name, _ = interface(job)
    environ = {"NCCL_HOSTID": job.cluster.current}
    environ |= {"NCCL_SOCKET_IFNAME": name, "GLOO_SOCKET_IFNAME": name} if name else {}
    if job.machine.fabric == "efa":
        environ |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    return environ


def notes(job: Job) -> tuple[str, ...]:
    """Return a note if the interface is not the one that the documents name."""
    if len(job.cluster.hosts) < 2:
        return ()
    _, note = interface(job)
    return (note,) if note else ()
