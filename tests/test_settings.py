import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ContractError
from toolkit.settings import CHILD_VARIABLES, PREFIX, Settings, read, table, unknown, valid


def test_nothing_given_is_the_defaults() -> None:
    assert read({"PATH": "/bin", "TOOLKITS": "x"}) == Settings()


def test_every_variable_is_read_under_its_own_name() -> None:
    environ = {
        "TOOLKIT_ARGUMENT_STYLE": "flags",
        "TOOLKIT_PROCESSES_PER_HOST": "8",
        "TOOLKIT_GRACE_S": "12.5",
        "TOOLKIT_JOIN_S": "60",
        "TOOLKIT_LOG_PREFIX": "rank",
        "TOOLKIT_METRICS": "/opt/metrics.json",
        "TOOLKIT_RANK_HOOK": "off",
        "TOOLKIT_HOST_ADDRESSES": "algo-1=127.0.0.1, algo-2=::1",
    }

    settings = read(environ)

    assert settings == Settings(
        argument_style="flags",
        processes_per_host=8,
        grace_s=12.5,
        join_s=60.0,
        log_prefix="rank",
        metrics=Path("/opt/metrics.json"),
        rank_hook="off",
        host_addresses="algo-1=127.0.0.1, algo-2=::1",
    )
    assert settings.addresses() == {"algo-1": "127.0.0.1", "algo-2": "::1"}


def test_an_empty_variable_is_not_given_and_spaces_around_a_value_do_not_count() -> None:
    assert read({"TOOLKIT_GRACE_S": "", "TOOLKIT_PROCESSES_PER_HOST": " 2\n"}) == Settings(processes_per_host=2)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TOOLKIT_RANK_HOOK", "On", "one of 'on', 'off'"),
        ("TOOLKIT_ARGUMENT_STYLE", "v3", "one of 'sagemaker', 'json', 'flags', 'none'"),
        ("TOOLKIT_PROCESSES_PER_HOST", "0", "a whole number, 1 to 1,000,000"),
        ("TOOLKIT_PROCESSES_PER_HOST", "1" + "0" * 400, "a whole number, 1 to 1,000,000"),
        ("TOOLKIT_PROCESSES_PER_HOST", "2.5", "a whole number, 1 to 1,000,000"),
        ("TOOLKIT_LINK_PORT", "99999", "a whole number, 1 to 65,535"),
        ("TOOLKIT_STRAGGLER_FACTOR", "0", "a number above 1"),
        ("TOOLKIT_RESTARTS", "-1", "a whole number, 0 to 1,000,000"),
        ("TOOLKIT_LOG_FILE_MIB", "-1", "a whole number, 1 to 1,000,000"),
        ("TOOLKIT_GRACE_S", "30s", "seconds, 0 to 10,000,000"),
        ("TOOLKIT_GRACE_S", "-1", "seconds, 0 to 10,000,000"),
        ("TOOLKIT_JOIN_S", "nan", "seconds, 0 to 10,000,000"),
        ("TOOLKIT_JOIN_S", "inf", "seconds, 0 to 10,000,000"),
    ],
)
def test_a_wrong_value_names_its_variable_what_was_expected_and_what_was_found(
    variable: str, value: str, expected: str
) -> None:
    with pytest.raises(ContractError) as error:
        read({"TOOLKIT_LOG_PREFIX": "off", variable: value})

    assert str(error.value) == f"{variable}: expected {expected}, found {value!r}. Correct the variable or unset it."


def test_a_wrong_value_leaves_the_others_valid() -> None:
    environ = {"TOOLKIT_BASE": "/b", "TOOLKIT_GRACE_S": "soon", "TOOLKIT_PLATFORM": "moon", "TOOLKIT_HOST": " b "}

    settings_read = valid(environ)

    assert (settings_read.base, settings_read.grace_s, settings_read.platform, settings_read.host) == (
        "/b",
        None,
        "auto",
        "b",
    )
    assert valid({"TOOLKIT_HOST": "b"}) == read({"TOOLKIT_HOST": "b"})


@pytest.mark.parametrize("value", ["algo-1", "algo-1=", "=127.0.0.1", "algo-1=127.0.0.1,algo-2"])
def test_an_address_without_its_host_or_the_reverse_is_named(value: str) -> None:
    with pytest.raises(ContractError, match="TOOLKIT_HOST_ADDRESSES: expected HOST=ADDRESS"):
        read({"TOOLKIT_HOST_ADDRESSES": value}).addresses()


@pytest.mark.parametrize(
    "address",
    [
        "[::1]",
        "10.0.0.999",
        "10.0.0",
        "127.0.0.1:80",
        "127.0.0.1/8",
        "fd00::1/64",
        "::1::2",
        "10.0.0.1 10.0.0.2",
        "http://algo-1",
        "algo_1!",
        "-",
        "algo..1",
        "x" * 300,
    ],
)
def test_an_address_that_can_be_none_is_named_with_its_host(address: str) -> None:
    with pytest.raises(ContractError) as error:
        read({"TOOLKIT_HOST_ADDRESSES": f"algo-1=127.0.0.1,algo-2={address}"}).addresses()

    assert str(error.value).startswith(
        "TOOLKIT_HOST_ADDRESSES: expected an IPv4 or IPv6 address (without brackets, port or mask) or a name for host"
        f" algo-2, found {address[:80]!r}"
    )


@pytest.mark.parametrize(
    ("address", "read_as"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("fd00::1", "fd00::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("::FFFF:127.0.0.1", "127.0.0.1"),
        ("gpu-node-3", "gpu-node-3"),
        ("algo-2.my_ns.svc.cluster.local.", "algo-2.my_ns.svc.cluster.local."),
        ("node7", "node7"),
    ],
)
def test_an_address_is_of_either_family_or_a_name(address: str, read_as: str) -> None:
    assert read({"TOOLKIT_HOST_ADDRESSES": f"algo-2={address}"}).addresses() == {"algo-2": read_as}


@given(st.dictionaries(st.sampled_from([variable for variable, *_ in table()]), st.text()))
def test_any_text_is_a_setting_or_a_contract_error_that_names_a_variable(environ: dict[str, str]) -> None:
    try:
        read(environ)
    except ContractError as error:
        assert error.where in environ


def test_the_table_has_a_row_for_every_setting_with_its_default_and_a_meaning() -> None:
    rows = {variable: (values, default, meaning) for variable, values, default, meaning in table()}

    assert list(rows) == ["TOOLKIT_" + field.upper() for field in Settings.__struct_fields__]
    assert rows["TOOLKIT_JOIN_S"][:2] == ("number", "900")
    assert rows["TOOLKIT_GRACE_S"][:2] == ("number", "")
    assert rows["TOOLKIT_STALL_ACTION"][:2] == ("`stop`, `report`", "stop")
    assert rows["TOOLKIT_METRICS"][0] == "path"
    assert all(values and meaning for values, _, meaning in rows.values())


SERVICE = {
    "TOOLKIT_SERVICE_HOST": "10.0.0.7",
    "TOOLKIT_SERVICE_PORT": "80",
    "TOOLKIT_SERVICE_PORT_HTTP": "80",
    "TOOLKIT_PORT": "tcp://10.0.0.7:80",
    "TOOLKIT_PORT_80_TCP": "tcp://10.0.0.7:80",
    "TOOLKIT_PORT_80_TCP_ADDR": "10.0.0.7",
    "TOOLKIT_LINK_SERVICE_HOST": "10.0.0.8",
    "TOOLKIT_LINK_SERVICE_PORT": "81",
    "TOOLKIT_LINK_PORT": "tcp://10.0.0.8:81",
    "TOOLKIT_LINK_PORT_81_TCP_PROTO": "tcp",
}


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("TOOLKIT_STALL", "TOOLKIT_STALL (Did you mean TOOLKIT_STALL_S?)"),
        ("TOOLKIT_HYPERPARAMETER", "TOOLKIT_HYPERPARAMETER (Did you mean TOOLKIT_HYPERPARAMETERS?)"),
        ("TOOLKIT_PROCS_PER_HOST", "TOOLKIT_PROCS_PER_HOST (Did you mean TOOLKIT_PROCESSES_PER_HOST?)"),
        ("TOOLKIT_LINKPORT", "TOOLKIT_LINKPORT (Did you mean TOOLKIT_LINK_PORT?)"),
        ("TOOLKIT_XYZZY", "names: TOOLKIT_XYZZY. docs/settings.md"),
        ("TOOLKIT_PORTS_80", "TOOLKIT_PORTS_80"),
    ],
)
def test_a_name_that_is_no_setting_is_told_with_the_nearest(name: str, warning: str) -> None:
    assert warning in unknown({name: "sesame", "PATH": "/bin", "TOOLKIT_JOIN_S": "5", "TOOLKITS": "x"})
    assert "sesame" not in unknown({name: "sesame"})


def test_known_names_are_not_told() -> None:
    environ = {variable: "" for variable, *_ in table()} | {PREFIX + name: "" for name in CHILD_VARIABLES}

    assert unknown(environ) == ""


def test_the_variables_of_a_service_are_neither_settings_nor_mistakes() -> None:
    assert unknown(SERVICE) == ""
    assert read(SERVICE) == Settings()
    assert read({**SERVICE, "TOOLKIT_LINK_PORT": "4711"}).link_port == 4711


def test_every_variable_that_the_code_names_is_a_setting_or_one_of_ours() -> None:
    package = Path(__file__).parents[1] / "toolkit"
    variables = {
        name for path in package.rglob("*.py") for name in re.findall(r"\bTOOLKIT_[A-Z_]*[A-Z]\b", path.read_text())
    }
    documented = {variable for variable, *_ in table()} | {PREFIX + name for name in CHILD_VARIABLES}

    assert {name for name in variables - documented if "SERVICE" not in name and "PORT" not in name} == set()
