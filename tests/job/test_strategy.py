"""The registry of strategies: what derives from it agrees with it."""

import re
from pathlib import Path
from typing import get_args

import toolkit
from toolkit.job.strategy import STRATEGIES, StrategyName


def test_every_strategy_has_a_row_in_the_order_of_the_names() -> None:
    assert tuple(STRATEGIES) == get_args(StrategyName)


def test_every_row_names_a_launcher_that_exists() -> None:
    folder = Path(toolkit.__file__).parent / "train" / "launchers"

    assert [row.launcher for row in STRATEGIES.values() if not (folder / f"{row.launcher}.py").is_file()] == []


def test_every_row_but_the_plain_scripts_has_a_key_and_a_flag_of_the_sdk() -> None:
    assert [name for name, row in STRATEGIES.items() if not (row.sdk_keys and row.sdk_flag)] == ["script"]


def test_no_two_strategies_share_a_name_a_key_or_a_flag() -> None:
    rows = STRATEGIES.values()
    for words in (
        [name for row in rows for name in row.names],
        [row.sdk_keys for row in rows if row.sdk_keys],
        [row.sdk_flag for row in rows if row.sdk_flag],
    ):
        assert len(set(words)) == len(words)


def test_the_page_of_toolkit_run_lists_the_names_in_the_order_of_precedence() -> None:
    page = (Path(__file__).parents[2] / "docs/toolkit-run.md").read_text("utf-8")
    (meaning,) = re.findall(
        r"^\| `--distribution NAME` \| `distribution` \| (.+), or the SageMaker SDK's .*\|$", page, re.M
    )

    names = [re.sub(r"\)$", "", listed).split(" (or ") for listed in meaning.split(", ")]

    assert names == [list(row.names) for row in STRATEGIES.values()]
