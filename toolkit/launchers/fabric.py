"""Pure: variables for the collectives' libraries, by the machine's devices. The caller lets the user's values win."""

from toolkit.job.job import Job


def interface(job: Job) -> tuple[str | None, str]:
    """Return (the interface that reaches the peers, a note): the documents' one if this machine has it, else its
    route's.

    `ethwe`, which SageMaker's SDK v3 writes into local jobs, exists in no container.
    """
    asked = job.cluster.interface
    have = job.machine.interfaces
    if not have or asked in have:
        return asked, ""
    found = job.machine.route_interface
    if found is None:
        return None, f"network interface {asked} is not on this machine (it has {', '.join(have)}): none is set"
    return found, f"network interface {asked} is not on this machine (it has {', '.join(have)}): using {found}"


def variables(job: Job) -> dict[str, str]:
    """Return what several hosts need: the socket interface, a name for this host that no other has, and EFA's provider
    where there are EFA devices.

    NCCL takes ranks for those of one machine, and tries shared memory between them, where gethostname() and the
    kernel's boot id are the same, as for containers of one machine with one name. NCCL_HOSTID is what it compares
    instead (NCCL's user guide, "Environment Variables").
    """
    if len(job.cluster.hosts) < 2:
        return {}
    name, _ = interface(job)
    found = {"NCCL_HOSTID": job.cluster.current}
    found |= {"NCCL_SOCKET_IFNAME": name, "GLOO_SOCKET_IFNAME": name} if name else {}
    if job.machine.fabric == "efa":
        found |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    return found


def notes(job: Job) -> tuple[str, ...]:
    """Return notes on the choice of the interface."""
    if len(job.cluster.hosts) < 2:
        return ()
    _, note = interface(job)
    return (note,) if note else ()
