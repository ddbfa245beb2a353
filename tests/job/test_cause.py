from toolkit.job.cause import Cause


def test_a_rank_that_others_lost_and_that_failed_first_left_early() -> None:
    assert Cause(primary=True, peer_lost=True).is_early_exit
    assert not Cause(primary=False, peer_lost=True).is_early_exit
    assert not Cause(primary=True).is_early_exit


def test_texts_of_scripts_are_masked_and_those_of_the_toolkit_are_not() -> None:
    cause = Cause(message="a", traceback="b", fingerprint="c", kind="ValueError")

    masked = cause.masked(lambda text: f"<{text}>")

    assert (masked.message, masked.traceback, masked.fingerprint, masked.kind) == ("<a>", "<b>", "<c>", "ValueError")
