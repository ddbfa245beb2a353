"""Does pieces of work in a few threads, in order and with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from toolkit.storage.store import THREADS

_T = TypeVar("_T")


def run_ordered(pieces: Iterable[Callable[[], _T]]) -> Iterator[_T]:
    """Yield the result of each of *pieces*, in their order; THREADS of them run at a time. The first error is raised,
    and no further piece begins."""
    pool = ThreadPoolExecutor(THREADS)
    ahead: deque[Future[_T]] = deque()
    try:
        for piece in pieces:
            ahead.append(pool.submit(piece))
            if len(ahead) >= THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
