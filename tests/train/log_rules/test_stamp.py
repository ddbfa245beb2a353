import pytest

from toolkit.train.log_rules.stamp import read

NOON = 1760011200.0  # 2025-10-09 12:00:00 UTC


@pytest.mark.parametrize(
    ("line", "time_s"),
    [
        (b"2025-10-09T12:00:00Z loss=1", NOON),
        (b"2025-10-09 12:00:00 loss=1", NOON),
        (b"2025-10-09 12:00:00,250 - INFO - loss=1", NOON + 0.25),
        (b"2025-10-09T12:00:00.123456789Z stdout", NOON + 0.123456789),
        (b"2025-10-09T14:00:00+02:00 x", NOON),
        (b"2025-10-09T14:00:00+0200 x", NOON),
        (b"2025-10-09T07:30:00-04:30 x", NOON),
        (b"[2025-10-09 12:00:00] x", NOON),
        (b"2025-10-09 12:00:00 UTC x", NOON),
        (b"2025-10-09T12:00:00Z\n", NOON),
        (b"1760011200 x", NOON),
        (b"1760011200.5 x", NOON + 0.5),
        (b"[1760011200.5] x", NOON + 0.5),
        (b"[algo-1 rank 3] 2025-10-09 12:00:00 x", NOON),
        (b"2025-10-09T12:00:00Z [algo-1 rank 3] x", NOON),
        (b"", None),
        (b"loss=1 at 2025-10-09T12:00:00Z", None),
        (b"2025-10-09 loss=1", None),
        (b"2025-13-09T12:00:00Z", None),
        (b"2025-02-30T12:00:00Z", None),
        (b"2025-10-09T25:00:00Z", None),
        (b"17600112001 x", None),
        (b"1760011200x", None),
        (b"1760011200.5.7", None),
        (b"\xff\xfe 1760011200", None),
    ],
)
def test_the_time_at_the_start_of_a_line_is_read(line: bytes, time_s: float | None) -> None:
    stamp = read(line).time_s

    assert stamp == (None if time_s is None else pytest.approx(time_s, abs=1e-6))


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        (b"[algo-1 rank 3] x\n", 3, b"x\n"),
        (b"2025-10-09T12:00:00Z [algo-1 rank 12] x", 12, b"x"),
        (b"[algo-1 rank 0] 2025-10-09 12:00:00 x", 0, b"2025-10-09 12:00:00 x"),
        (b"2025-10-09 12:00:00 x", None, b"2025-10-09 12:00:00 x"),
        (b"[algo-1 script] x", None, b"[algo-1 script] x"),
        (b"x [algo-1 rank 3] y", None, b"x [algo-1 rank 3] y"),
    ],
)
def test_the_rank_and_what_it_wrote_are_read(line: bytes, rank: int | None, text: bytes) -> None:
    stamp = read(line)

    assert (stamp.rank, stamp.text) == (rank, text)
