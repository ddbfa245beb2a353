"""An exception is the cause also where it was never printed."""

from tests.walk.base import Base


def test_an_exception_whose_print_is_lost_is_still_the_cause(base: Base) -> None:
    base.program("import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\nraise RuntimeError('no shard 7')\n")

    done = base.train()

    assert done.status == 1
    assert b"no shard 7" not in done.stdout
    assert done.failure is not None
    assert 'ErrorMessage "RuntimeError: no shard 7 (at ' in done.failure


def test_an_exception_that_was_printed_is_told_once(base: Base) -> None:
    base.program("raise RuntimeError('no shard 7')\n")

    done = base.train()

    assert done.outcome["traceback"].count("Traceback") == 1
    assert done.outcome["traceback"].count("no shard 7") == 2  # Its line of the script, and itself.
