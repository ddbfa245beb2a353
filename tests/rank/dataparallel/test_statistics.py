"""The line at the job's end, and what it takes to know it."""

import sys
from typing import Any

import pytest

from toolkit.rank.dataparallel.statistics import MIB, CollectiveStatistics, PathStatistics, line


class Store:
    """A store as torch's, of one process; *slow* ranks never tell."""

    def __init__(self, **values: str) -> None:
        self.values = {name.replace("_", "/"): value for name, value in values.items()}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


class Reducer:
    def by_path(self) -> dict[str, tuple[int, int, int]]:
        return {"shared memory": (2, 8 * MIB, 6 * MIB)}


@pytest.mark.parametrize(
    ("ways", "others", "sent", "expected"),
    [
        ({"gloo": PathStatistics(0, 0, 0)}, 0, [0, 0], "2 ranks; all-reduce: none"),
        (
            {"nccl": PathStatistics(44, 12 * MIB, 12 * MIB)},
            3,
            [12 * MIB, 12 * MIB],
            "2 ranks; all-reduce: 44 x nccl, 12.0 MiB; other collectives: 3; each rank sent 12.0 MiB (max/mean 1.00)",
        ),
        (
            {"gloo": PathStatistics(1, MIB, MIB), "shared memory": PathStatistics(2, 8 * MIB, 6 * MIB)},
            0,
            [7 * MIB, 5 * MIB],
            "2 ranks; all-reduce: 1 x gloo, 1.0 MiB, 2 x shared memory, 8.0 MiB;"
            " each rank sent 6.0 MiB (max/mean 1.17)",
        ),
        (
            {"gloo": PathStatistics(1, MIB, MIB)},
            0,
            [MIB],
            "2 ranks; all-reduce: 1 x gloo, 1.0 MiB; 1 of 2 ranks sent 1.0 MiB (max/mean 1.00)",
        ),
    ],
)
def test_the_line_counts_calls_by_path_and_compares_the_ranks_bytes(
    ways: dict[str, PathStatistics], others: int, sent: list[int], expected: str
) -> None:
    assert line(2, ways, others, sent) == expected


def counted(rank: int, store: Any) -> CollectiveStatistics:
    statistics = CollectiveStatistics()
    statistics.begin(store, rank, 2, "gloo")
    statistics.begin(Store(), 7, 8, "another")  # A group made later changes nothing.
    statistics.count_native(4 * MIB, 2)
    return statistics


def test_rank_0_adds_hierarchical_calls_and_the_other_ranks_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    statistics = counted(0, Store(sent_1=str(10 * MIB)))
    statistics.reducers.append(Reducer())

    statistics.end()
    statistics.end()

    assert capsys.readouterr().err == (
        "[toolkit] smddp: 2 ranks; all-reduce: 1 x gloo, 4.0 MiB, 2 x shared memory, 8.0 MiB;"
        " each rank sent 10.0 MiB (max/mean 1.00)\n"
    )


def test_another_rank_stores_its_bytes_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store()

    counted(1, store).end()

    assert store.values == {"sent/1": str(4 * MIB)}
    assert capsys.readouterr().err == ""


def test_a_rank_that_does_not_report_delays_the_line_by_a_second_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    counted(0, Store()).end()

    assert "1 of 2 ranks sent" in capsys.readouterr().err


def test_a_lost_store_does_not_fail_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    counted(0, object()).end()
    counted(1, object()).end()

    assert capsys.readouterr().err == ""


def test_after_an_exception_nothing_is_printed_or_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)

    counted(0, Store()).end()

    assert capsys.readouterr().err == ""


def test_without_a_group_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    CollectiveStatistics().end()

    assert capsys.readouterr().err == ""
