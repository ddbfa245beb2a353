"""Sets of times: ascending, disjoint (start, end) pairs."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the times that any of *spans* covers."""
    merged: list[Span] = []
    start = end = 0.0
    for each_start, each_end in sorted(spans):
        if not merged or each_start > end:
            if merged:
                merged[-1] = (start, end)
            start, end = each_start, each_end
            merged.append((start, end))
        elif each_end > end:
            end = each_end
    if merged:
        merged[-1] = (start, end)
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return how long the disjoint *spans* are together."""
    return sum(end - start for start, end in spans)


def common(these: Sequence[Span], those: Sequence[Span]) -> list[Span]:
    """Return the times that both sets cover."""
    found = []
    here = there = 0
    while here < len(these) and there < len(those):
        start, end = max(these[here][0], those[there][0]), min(these[here][1], those[there][1])
        if start < end:
            found.append((start, end))
        if these[here][1] < those[there][1]:
            here += 1
        else:
            there += 1
    return found


def without(these: Sequence[Span], those: Sequence[Span]) -> list[Span]:
    """Return the times of *these* that *those* do not cover."""
    found = []
    there = 0
    for begin, end in these:
        start = begin
        while there < len(those) and those[there][1] <= start:
            there += 1
        at = there
        while at < len(those) and those[at][0] < end:
            if those[at][0] > start:
                found.append((start, those[at][0]))
            start = max(start, those[at][1])
            at += 1
        if start < end:
            found.append((start, end))
    return found


def shares(spans: Sequence[Span], start: float, end: float, buckets: int) -> tuple[float, ...]:
    """Return which share of each of *buckets* equal parts of *start* to *end* the disjoint *spans* cover, 0 to 1."""
    width = (end - start) / buckets
    found = [0.0] * buckets
    if width <= 0:
        return tuple(found)
    for first, last in spans:
        first, last = max(first, start), min(last, end)
        while first < last:
            bucket = min(int((first - start) / width), buckets - 1)
            edge = start + (bucket + 1) * width
            part = last if bucket == buckets - 1 else min(last, edge)
            if part <= first:  # Rounding left nothing of this bucket.
                part = min(last, edge + width)
                bucket = min(bucket + 1, buckets - 1)
            found[bucket] += part - first
            first = part
    return tuple(min(share / width, 1.0) for share in found)
