from typing import Any

import pytest

from tests.train.launchers.jobs import job_of
from toolkit.train.launchers.environment import environment
from toolkit.train.launchers.fabric import interface, notes, variables

TWO = ("algo-1", "algo-2")


@pytest.mark.parametrize(
    ("requested", "have", "route", "expected", "note"),
    [
        ("eth0", ("eth0", "lo"), "eth0", "eth0", ""),
        ("eth1", ("eth0", "eth1", "lo"), "eth0", "eth1", ""),
        ("ethwe", ("eth0", "lo"), "eth0", "eth0", "(it has eth0, lo): using eth0"),
        ("ethwe", ("eth0", "eth1", "lo"), None, None, "(it has eth0, eth1, lo): none is set"),
        ("eth0", (), None, "eth0", ""),
    ],
)
def test_the_interface_is_the_documents_if_it_is_there_else_the_routes(
    requested: str, have: tuple[str, ...], route: str | None, expected: str | None, note: str
) -> None:
    """Contract point 77."""
    job = job_of(hosts=TWO, interface=requested, machine={"interfaces": have, "route_interface": route})

    chosen, message = interface(job)

    assert chosen == expected
    assert message == (f"network interface {requested} is not on this machine {note}" if note else "")
    assert notes(job) == ((message,) if note else ())
    names = {"NCCL_SOCKET_IFNAME": expected, "GLOO_SOCKET_IFNAME": expected} if expected else {}
    assert variables(job) == {"NCCL_HOSTID": "algo-1", **names}


@pytest.mark.parametrize("machine", [{"fabric": "efa"}, {"interfaces": ("x",), "route_interface": "x"}])
def test_one_host_needs_none_of_it(machine: dict[str, Any]) -> None:
    job = job_of(machine=machine, interface="ethwe")

    assert (variables(job), notes(job)) == ({}, ())


@pytest.mark.parametrize(("fabric", "expected"), [("tcp", False), ("infiniband", False), ("efa", True)])
def test_efa_is_used_where_its_devices_are(fabric: str, expected: bool) -> None:
    """Contract point 48: decided by devices, never by a list of instance types."""
    efa_variables = variables(job_of(hosts=TWO, machine={"fabric": fabric}))

    assert (efa_variables.get("FI_PROVIDER") == "efa") is expected


def test_every_host_is_another_to_nccl_whatever_its_container_is_called() -> None:
    """Contract point 76: containers of one machine share its boot id, and may share their name, too."""
    jobs = [job_of("torch_distributed", hosts=TWO, current=host) for host in TWO]

    assert [variables(job)["NCCL_HOSTID"] for job in jobs] == ["algo-1", "algo-2"]
    assert environment(job_of(hosts=TWO, environ={"NCCL_HOSTID": "mine"}), ())["NCCL_HOSTID"] == "mine"
