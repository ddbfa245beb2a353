"""The registry of strategies: what derives from it agrees with it."""

from pathlib import Path
from typing import get_args

import toolkit
from toolkit.job.strategy import STRATEGIES, StrategyName


def test_every_strategy_has_a_row_in_the_order_of_the_names() -> None:
    assert tuple(STRATEGIES) == get_args(StrategyName)


def test_every_row_names_a_launcher_that_exists() -> None:
    folder = Path(toolkit.__file__).parent / "train" / "launchers"

    assert [row.launcher for row in STRATEGIES.values() if not (folder / f"{row.launcher}.py").is_file()] == []


def test_no_two_strategies_share_a_name_a_key_or_a_flag() -> None:
    rows = STRATEGIES.values()
    for words in (
        [name for row in rows for name in row.names],
        [row.sdk_keys for row in rows if row.sdk_keys],
        [row.sdk_flag for row in rows if row.sdk_flag],
    ):
        assert len(set(words)) == len(words)
