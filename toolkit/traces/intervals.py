"""Sets of times: ascending, disjoint (start, end) pairs."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the times that any of *spans* covers."""
    merged: list[Span] = []
    start = end = 0.0
    for span_start, span_end in sorted(spans):
        if not merged or span_start > end:
            if merged:
                merged[-1] = (start, end)
            start, end = span_start, span_end
            merged.append((start, end))
        elif span_end > end:
            end = span_end
    if merged:
        merged[-1] = (start, end)
    return merged


def total_length(spans: Iterable[Span]) -> float:
    """Return the total length of the disjoint *spans*."""
    return sum(end - start for start, end in spans)


def intersect(first_spans: Sequence[Span], second_spans: Sequence[Span]) -> list[Span]:
    """Return the times that both sets cover."""
    overlaps = []
    first = second = 0
    while first < len(first_spans) and second < len(second_spans):
        start = max(first_spans[first][0], second_spans[second][0])
        end = min(first_spans[first][1], second_spans[second][1])
        if start < end:
            overlaps.append((start, end))
        if first_spans[first][1] < second_spans[second][1]:
            first += 1
        else:
            second += 1
    return overlaps


def subtract(spans: Sequence[Span], removed: Sequence[Span]) -> list[Span]:
    """Return the times of *spans* that *removed* do not cover."""
    remaining = []
    first_candidate = 0
    for begin, end in spans:
        start = begin
        while first_candidate < len(removed) and removed[first_candidate][1] <= start:
            first_candidate += 1
        number = first_candidate
        while number < len(removed) and removed[number][0] < end:
            if removed[number][0] > start:
                remaining.append((start, removed[number][0]))
            start = max(start, removed[number][1])
            number += 1
        if start < end:
            remaining.append((start, end))
    return remaining


def bucket_shares(spans: Sequence[Span], start: float, end: float, buckets: int) -> tuple[float, ...]:
    """Return the share, 0 to 1, of each of *buckets* equal parts of *start* to *end* that the disjoint *spans*
    cover."""
    width = (end - start) / buckets
    covered = [0.0] * buckets
    if width <= 0:
        return tuple(covered)
    for first, last in spans:
        first, last = max(first, start), min(last, end)
        while first < last:
            bucket = min(int((first - start) / width), buckets - 1)
            edge = start + (bucket + 1) * width
            part = last if bucket == buckets - 1 else min(last, edge)
            if part <= first:  # Rounding left nothing of this bucket.
                part = min(last, edge + width)
                bucket = min(bucket + 1, buckets - 1)
            covered[bucket] += part - first
            first = part
    return tuple(min(share / width, 1.0) for share in covered)
