"""A host's ID and addresses."""

from toolkit.rank.mesh.host import find_addresses, read_host_id


def test_ranks_of_one_machine_share_a_host_id() -> None:
    assert read_host_id({"RANK": "0"}) == read_host_id({"RANK": "1"}) != ""


def test_simulated_hosts_of_one_machine_have_different_ids() -> None:
    host_ids = {read_host_id({name: value}) for name in ("SM_CURRENT_HOST", "GROUP_RANK") for value in ("0", "1")}

    assert len(host_ids) == 4


def test_the_address_is_the_chosen_devices_then_the_one_towards_the_master() -> None:
    assert find_addresses({"GLOO_SOCKET_IFNAME": "lo,eth9"})[0] == "127.0.0.1"
    assert find_addresses({"GLOO_SOCKET_IFNAME": "nosuch0", "MASTER_ADDR": "127.0.0.2"})[0] == "127.0.0.1"


def test_names_that_nobody_knows_are_no_reason_to_fail() -> None:
    by_name = find_addresses({})

    assert find_addresses({"GLOO_SOCKET_IFNAME": "nosuch0", "MASTER_ADDR": "no such.invalid"}) == by_name
