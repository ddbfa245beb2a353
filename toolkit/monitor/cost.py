"""Measures what the monitor costs, and chooses the interval that it can afford. Pure: CPU times are arguments."""

# A sample may cost this part of a core with 500 ms between two: by its own code, and with the kernel's part, which is
# to make the text of the files. Whoever asks for a shorter interval asks for more samples, not for dearer ones.
MOST_OWN, MOST_WHOLE = 0.002, 0.01
USUAL_S = 0.5
# The interval is stretched to at most this, unless a longer one was asked for.
LONGEST_S = 10.0
# The first samples open files and fill caches.
WARM_UP = 5
_SMOOTH = 0.1


class Cost:
    """`interval_s`: as asked, or longer where samples are dear. `own_s`, `kernel_s`: the CPU time of a sample.

    `percent`: of a core, of all that the monitor does.
    """

    def __init__(self, asked_s: float) -> None:
        self._asked_s = asked_s
        self.interval_s = asked_s
        self.own_s = self.kernel_s = 0.0
        self.percent = 0.0
        self._samples = 0
        self._before: tuple[float, float] | None = None

    def sample(self, own_s: float, kernel_s: float) -> None:
        """Note what a sample has cost, and fit the interval."""
        self._samples += 1
        if self._samples < WARM_UP:
            return
        weight = 1.0 if self._samples == WARM_UP else _SMOOTH
        self.own_s += weight * (own_s - self.own_s)
        self.kernel_s += weight * (kernel_s - self.kernel_s)
        budget_s = max(self._asked_s, USUAL_S)
        dear = max(self.own_s / (MOST_OWN * budget_s), (self.own_s + self.kernel_s) / (MOST_WHOLE * budget_s), 1.0)
        self.interval_s = max(self._asked_s, min(self._asked_s * dear, LONGEST_S))

    def whole(self, cpu_s: float, now_s: float) -> None:
        """Note the CPU time of the whole process so far, at *now_s*."""
        if self._before is not None and now_s > self._before[1]:
            self.percent = 100.0 * (cpu_s - self._before[0]) / (now_s - self._before[1])
        self._before = (cpu_s, now_s)
