"""Random histories: what must hold is in tests/storage/histories.py, which plays them for longer by hand."""

import random

import pytest

from tests.storage.histories import play
from toolkit.storage import retention, scan


@pytest.mark.parametrize("seconds", [2.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_no_history_of_faults_costs_storage_its_newest_checkpoint(seconds: float) -> None:
    assert play(seconds, 1)
    seed = random.SystemRandom().randrange(1 << 32)
    assert play(seconds, seed), f"seeds from {seed} on"


@pytest.mark.parametrize("rule", ["_is_replaced", "_tied", "_lacks", "_is_removal"])
def test_histories_find_a_rule_that_is_broken(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {
        "_is_replaced": lambda version, others, taken: True,
        "_tied": lambda removable, remaining, in_folder, targets: set(),
        "_lacks": lambda new, old: False,
        "_is_removal": lambda new, old, largest_bytes, end, *, is_left: bool(not new.size_bytes and old.size_bytes),
    }
    monkeypatch.setattr(retention, rule, broken[rule])

    with pytest.raises(AssertionError):
        play(60.0, 1)


def test_histories_find_a_read_that_fails_and_is_taken_for_an_empty_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = scan.read

    def careless(path: object, start: int, size_bytes: int) -> bytes:
        try:
            return real(path, start, size_bytes)  # type: ignore[arg-type]
        except OSError:
            return bytes(size_bytes)

    monkeypatch.setattr("toolkit.storage.checkpoints.read", careless)

    with pytest.raises(AssertionError):
        play(60.0, 1)
