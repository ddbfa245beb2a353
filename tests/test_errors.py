import pytest

from toolkit.errors import ContractError, InternalError, PlatformError, ToolkitError, UserError


@pytest.mark.parametrize(
    ("kind", "exit_code", "blame", "prefix"),
    [
        (UserError, 78, "user", "ClientError"),
        (ContractError, 78, "job", "ClientError"),
        (PlatformError, 75, "platform", "PlatformError"),
        (InternalError, 70, "toolkit", "Framework Error"),
    ],
)
def test_a_failure_knows_who_is_to_blame_and_how_train_ends(
    kind: type[ToolkitError], exit_code: int, blame: str, prefix: str
) -> None:
    error = kind("something is wrong")

    assert (error.exit_code, error.blame, error.prefix) == (exit_code, blame, prefix)


def test_a_failure_reads_as_place_then_finding_then_way_out() -> None:
    error = ContractError("$.hosts: expected array, got str.", where="resourceconfig.json", hint="Give a list.")

    assert str(error) == "resourceconfig.json: $.hosts: expected array, got str. Give a list."


def test_a_failure_without_place_or_way_out_is_its_message() -> None:
    error = UserError("no entry point")

    assert str(error) == "no entry point"
    assert error.args == ("no entry point",)


def test_a_prefix_given_to_one_failure_stays_with_it() -> None:
    error = UserError("pip failed", prefix="InstallRequirementsError")

    assert error.prefix == "InstallRequirementsError"
    assert UserError("another").prefix == "ClientError"


def test_a_hint_after_a_question_has_no_full_stop_before_it() -> None:
    error = UserError("found 'b'. Did you mean a?", hint="`toolkit jobs` lists the jobs.")

    assert str(error) == "found 'b'. Did you mean a? `toolkit jobs` lists the jobs."
