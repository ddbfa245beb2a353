"""Lists of hosts, and which of them is this host."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import settings
from toolkit.errors import ContractError
from toolkit.train.platforms import place
from toolkit.train.platforms.place import expand_hosts, job_name, number_hosts, whole_number


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("algo-1", ["algo-1"]),
        ("algo-1,algo-2", ["algo-1", "algo-2"]),
        (" a , b ,", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-2,7],login", ["n1", "n2", "n7", "login"]),
        ("r[1-2]s[01-02]", ["r1s01", "r1s02", "r2s01", "r2s02"]),
        ("digits-[0-1].digits", ["digits-0.digits", "digits-1.digits"]),
        ("n[5]", ["n5"]),
        ("n[5]" * 3000, ["n5" * 3000]),
        ("b,a", ["b", "a"]),
    ],
)
def test_a_list_of_hosts_is_expanded_in_its_order(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text, "X")) == hosts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected hosts"),
        (" , ", "expected hosts"),
        ("n[1-2", "closed once"),
        ("n[1-[2]]", "closed once"),
        ("n1]", "closed once"),
        ("n[a-b]", "numbers and ranges"),
        ("n[]", "numbers and ranges"),
        ("n[3-1]", "counts up"),
        ("n[0-999999999]", "counts up"),
        ("n[1-90000],m[1-90000]", "at most 100,000 hosts"),
        ("a,a", "found 'a' twice"),
        ("n[1-2],n2", "found 'n2' twice"),
        ("a[0-99999]b[0-99999]c[0-99999]", "at most 100,000 hosts"),
        ("n[0-99998],n99998", "found 'n99998' twice"),
        (f"n[{'0' * 5000}1]", "numbers and ranges"),
        ("n[1-\N{ARABIC-INDIC DIGIT TWO}]", "numbers and ranges"),
        ("n[1]" * 3000 + "[", "closed once"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused_by_the_variables_name(text: str, reason: str) -> None:
    with pytest.raises(ContractError, match=reason) as caught:
        expand_hosts(text, "SLURM_STEP_NODELIST")

    assert str(caught.value).startswith("SLURM_STEP_NODELIST: ")


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), min_size=1, max_size=5), st.integers(1, 4))
def test_a_range_stands_for_its_numbers_at_its_width(ranges: list[tuple[int, int]], width: int) -> None:
    inside = ",".join(f"{first:0{width}d}-{first + more:0{width}d}" for first, more in ranges)
    numbers = [n for first, more in ranges for n in range(first, first + more + 1)]
    widths = [len(f"{first:0{width}d}") for first, more in ranges for _ in range(more + 1)]
    names = [f"n{n:0{w}d}-ib" for n, w in zip(numbers, widths, strict=True)]
    if len(set(names)) < len(names):
        return

    assert list(expand_hosts(f"n[{inside}]-ib", "X")) == names


@given(st.text(alphabet="n[]-,0123456789", max_size=20))
def test_any_text_is_hosts_or_a_reason(text: str) -> None:
    try:
        hosts = expand_hosts(text, "X")
    except ContractError:
        return
    assert hosts
    assert len(set(hosts)) == len(hosts)


def listed_hosts(environ: dict[str, str], index: str | None = None) -> tuple[tuple[str, ...], str] | None:
    return place.listed_hosts(settings.read(environ), environ, index)


@pytest.mark.parametrize(
    ("environ", "index", "current"),
    [
        ({"TOOLKIT_HOST": "b"}, None, "b"),
        ({"TOOLKIT_HOST": "b"}, "0", "b"),
        ({"HOSTNAME": "c"}, None, "c"),
        ({"HOSTNAME": "c.cluster.local"}, None, "c"),
        ({"HOSTNAME": "whatever"}, "1", "b"),
    ],
)
def test_which_host_one_is_is_told_by_name_index_or_the_machines_name(
    environ: dict[str, str], index: str | None, current: str
) -> None:
    assert listed_hosts({"TOOLKIT_HOSTS": "a,b,c", **environ}, index) == (("a", "b", "c"), current)


def test_a_machines_short_name_finds_its_long_one() -> None:
    place = listed_hosts({"TOOLKIT_HOSTS": "digits-[0-1].digits", "HOSTNAME": "digits-1"})

    assert place is not None
    assert place[1] == "digits-1.digits"


def test_one_host_needs_no_name() -> None:
    assert listed_hosts({"TOOLKIT_HOSTS": "a"}) == (("a",), "a")


def test_a_host_knows_itself_by_the_kernels_name_where_the_shell_exports_none() -> None:
    me = os.uname().nodename

    assert listed_hosts({"TOOLKIT_HOSTS": f"a,{me}"}) == (("a", me), me)


def test_a_host_that_is_none_of_them_is_refused_with_the_way_out() -> None:
    with pytest.raises(ContractError, match=r"expected one of TOOLKIT_HOSTS \(a, b\), found 'c'.*Set TOOLKIT_HOST"):
        listed_hosts({"TOOLKIT_HOSTS": "a,b", "HOSTNAME": "c"})


def test_without_a_list_there_are_no_hosts() -> None:
    assert listed_hosts({"HOSTNAME": "a"}) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "٣", "5"])
def test_a_number_outside_its_range_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="expected a whole number, 0 to 4"):
        whole_number(text, "X", below=5)


def test_hosts_known_by_number_have_the_leaders_address_alone() -> None:
    hosts, addresses = number_hosts(3, 1, "10.0.0.4")

    assert hosts == ("node-0", "node-1", "node-2")
    assert addresses == {"node-0": "10.0.0.4", "node-1": "node-1", "node-2": "node-2"}


@given(st.lists(st.text(max_size=80), max_size=3))
def test_a_jobs_name_is_one_that_a_job_file_may_have(parts: list[str]) -> None:
    name = job_name(*parts)

    assert len(name) <= 63
    assert not name.startswith("-")
    assert not name.endswith("-")
    assert name.replace("-", "").isalnum() or name == ""
