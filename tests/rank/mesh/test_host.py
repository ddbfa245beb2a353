"""The word for a host."""

from toolkit.rank.mesh.host import host_identity, own_addresses


def test_ranks_of_one_machine_share_a_word() -> None:
    assert host_identity({"RANK": "0"}) == host_identity({"RANK": "1"}) != ""


def test_simulated_hosts_of_one_machine_have_different_names() -> None:
    words = {host_identity({name: value}) for name in ("SM_CURRENT_HOST", "GROUP_RANK") for value in ("0", "1")}

    assert len(words) == 4


def test_the_address_is_the_chosen_devices_then_the_one_towards_the_master() -> None:
    assert own_addresses({"GLOO_SOCKET_IFNAME": "lo,eth9"})[0] == "127.0.0.1"
    assert own_addresses({"GLOO_SOCKET_IFNAME": "nosuch0", "MASTER_ADDR": "127.0.0.2"})[0] == "127.0.0.1"


def test_names_that_nobody_knows_are_no_reason_to_fail() -> None:
    by_name = own_addresses({})

    assert own_addresses({"GLOO_SOCKET_IFNAME": "nosuch0", "MASTER_ADDR": "no such.invalid"}) == by_name
