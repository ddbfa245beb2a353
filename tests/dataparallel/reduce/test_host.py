"""The word for a host."""

from toolkit.dataparallel.reduce.host import host_word


def test_ranks_of_one_machine_share_a_word() -> None:
    assert host_word({"RANK": "0"}) == host_word({"RANK": "1"}) != ""


def test_hosts_played_on_one_machine_are_told_apart() -> None:
    words = {host_word({name: value}) for name in ("SM_CURRENT_HOST", "GROUP_RANK") for value in ("0", "1")}

    assert len(words) == 4
