"""Pure: chooses the steps of a run that are traced. A window has at most 20 steps, and a job at most 8 windows.

A trace is kept in memory until its window ends (some 5 MiB a step), and writing it takes the rank's time.
"""

MOST_STEPS = 20
MOST_WINDOWS = 8
SETTING, REQUEST, SMPPY = "setting", "request", "smppy"


def windows(first: int, last: int) -> "list[tuple[int, int]]":
    """Return the windows, first and last step of each, for the steps *first* to *last*.

    One after the other where they fit the budget; else spread evenly over the steps, the first and the last included.
    """
    most = MOST_STEPS * MOST_WINDOWS
    count = last - first + 1
    if count <= most:
        return [(start, min(start + MOST_STEPS - 1, last)) for start in range(first, last + 1, MOST_STEPS)]
    gap = (count - MOST_STEPS) / (MOST_WINDOWS - 1)
    starts = (first + round(index * gap) for index in range(MOST_WINDOWS))
    return [(start, start + MOST_STEPS - 1) for start in starts]


def next_start(first: int, written: int, step: int) -> "int | None":
    """Return the first step, after *step*, of the next window of a run whose length is not known; None: no more.

    *first*: the first step of the first window; *written*: how many windows there were. The windows
    start 40, 120, 280, ... steps after the first one, so that they cover a long run as well as a short one.
    """
    if written >= MOST_WINDOWS:
        return None
    return max(step + 1, first + MOST_STEPS * ((1 << (written + 1)) - 2) if written else first)


def parse_window(text: str) -> "tuple[str, int, int] | None":
    """Return kind ("steps", "seconds"), first and last of a window as `train` passes it on: "steps 10 20"; None of any
    other text."""
    words = text.split()
    if len(words) != 3 or words[0] not in ("steps", "seconds") or not all(word.isdigit() for word in words[1:]):
        return None
    return words[0], int(words[1]), int(words[2])
