"""The soak's own judgement: it sees a lost, a repeated, a changed and a mixed line."""

import zlib

import pytest

from tests.soak.ledger import Ledger, growth, medians


def line(number: int, rank: int = 3, text: str = "abc", prefix: bytes = b"[algo-1 rank 3] ") -> bytes:
    body = f"soak {rank} 0 out {number} {text}".encode()
    return prefix + body + b" %08x" % zlib.crc32(body)


def judged(*lines: bytes, written: int) -> list[str]:
    ledger = Ledger()
    for line in lines:
        ledger.take(line)
    ledger.compare({(3, 0, "out"): written})
    return ledger.faults


@pytest.mark.parametrize("written", [2, 1])
def test_all_lines_in_order_are_no_fault_nor_is_one_that_a_killed_rank_did_not_count(written: int) -> None:
    assert judged(line(0), b"[toolkit] log", line(1), written=written) == []


@pytest.mark.parametrize(
    ("lines", "written", "fault"),
    [
        ([line(0), line(2)], 3, "expected line 1, found 2"),
        ([line(0), line(0)], 1, "expected line 1, found 0"),
        ([line(1), line(0)], 1, "expected line 0, found 1"),
        ([line(0)], 2, "wrote 2 lines, found 1"),
        ([], 1, "wrote 1 lines, found 0"),
        ([line(0)[:-9] + line(1)], 0, "a line was changed"),
        ([line(0).replace(b"abc", b"abd")], 0, "a line was changed"),
        ([line(0, prefix=b"[algo-1 rank 2] ")], 1, "another prefix"),
    ],
)
def test_every_loss_is_a_fault(lines: list[bytes], written: int, fault: str) -> None:
    assert fault in judged(*lines, written=written)[0]


def test_growth_is_that_of_the_medians() -> None:
    values = [5, 5, 90, 7, 7, 7, 8, 9, 9]

    assert growth(values) == (5, 9)
    assert medians(values, 4) == [5, 90, 7, 9]
