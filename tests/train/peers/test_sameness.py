import pytest

from toolkit.train.peers import sameness


@pytest.mark.parametrize(
    ("value", "text"), [("smddp", "smddp"), (3, "3"), (600.0, "600.0"), ("", ""), (["algo-1"], "#"), ("x" * 25, "#")]
)
def test_a_short_value_is_shown_and_a_long_one_is_a_digest(value: object, text: str) -> None:
    fact = sameness.make_fact(value)

    assert fact.startswith(text)
    assert len(fact) <= max(sameness.SHOWN, sameness.DIGITS + 1)
    assert fact == sameness.make_fact(value)


def test_the_order_of_keys_makes_no_difference_and_of_hosts_it_does() -> None:
    assert sameness.make_fact({"a": 1, "b": 2}) == sameness.make_fact({"b": 2, "a": 1})
    assert sameness.make_fact(("algo-1", "algo-2")) != sameness.make_fact(("algo-2", "algo-1"))


def test_a_job_is_told_by_its_name_and_without_one_by_its_hosts() -> None:
    hosts = ("algo-1", "algo-2")

    assert len(sameness.make_tag("one", hosts)) == sameness.TAG_BYTES
    assert sameness.make_tag("one", hosts) == sameness.make_tag("one", hosts[:1]) != sameness.make_tag("two", hosts)
    assert sameness.make_tag("", hosts) == sameness.make_tag("", hosts[::-1]) != sameness.make_tag("", hosts[:1])


def test_settings_that_may_differ_are_no_difference() -> None:
    leader = {"a": "1", "TOOLKIT_STALL_S": "600.0"}

    assert sameness.find_difference(leader, {"a": "1", "TOOLKIT_STALL_S": "0.0"}) == ""
    (said,) = sameness.list_unequal_settings(leader, {"a": "1"})
    assert said.startswith("TOOLKIT_STALL_S differs (the leader has 600.0, this host none); a hang is noticed only")
    assert sameness.list_unequal_settings(leader, leader) == ()
    assert sameness.find_difference(leader, {"a": "#2"}) == "a differs"


def test_a_host_that_states_no_distribution_is_outside_of_it_and_another_one_is_a_difference() -> None:
    leader = {"a": "1", sameness.DISTRIBUTION: "mpi"}

    assert sameness.find_difference(leader, {"a": "1"}) == ""
    assert sameness.find_difference(leader, {"a": "2"}).startswith("a differs")
    assert sameness.find_difference(leader, {"a": "1", sameness.DISTRIBUTION: "script"}) == (
        "the distribution differs (the leader has mpi, this host script)"
    )
