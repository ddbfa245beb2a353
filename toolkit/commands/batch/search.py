"""Pure: the search for the largest batch that fits into memory.

A batch that fits is doubled until one does not; then the range between the two is halved until it is narrow enough. It
takes for granted that a larger batch needs more memory.
"""

from collections.abc import Mapping

from toolkit.errors import UserError


def next_batch(
    tried: Mapping[int, bool], *, start: int, most: int, multiple: int = 1, tolerance: float = 0.05
) -> int | None:
    """Return the batch to try next, None once `largest` is known well enough.

    *tried*: each batch so far, True if it fitted. *start*, *most*: the first and the largest to try. *multiple*: only
    multiples of it are tried, but for *start*. *tolerance*: how far, as a share of the largest that fits, the next
    larger one that does not may be away.

    Raises:
        UserError: *start* or *multiple* is below 1, *most* below *start*, or *tolerance* negative.
    """
    if start < 1 or multiple < 1 or most < start or tolerance < 0:
        raise UserError(
            "expected 1 <= start <= most, a multiple of at least 1 and a tolerance of at least 0, "
            f"found start {start}, most {most}, multiple {multiple}, tolerance {tolerance:g}"
        )
    if not tried:
        return start
    low = largest(tried) or 0
    high = min((batch for batch, fits in tried.items() if not fits and batch > low), default=None)
    if high is None:
        batch = min(most, 2 * low) // multiple * multiple
        return batch if batch > low else None
    if low and high - low <= max(multiple, tolerance * low):
        return None
    batch = (low + high) // 2 // multiple * multiple
    return batch if batch > low and batch not in tried else None


def largest(tried: Mapping[int, bool]) -> int | None:
    """Return the largest batch of *tried* that fitted, None if none did."""
    return max((batch for batch, fits in tried.items() if fits), default=None)
