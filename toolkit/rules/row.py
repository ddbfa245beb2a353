"""Pure: the same answer so many times in a row, told once each way."""


class Row:
    """Counts answers in a row: `told` turns true after *enough* that were true, false after as many that were not.

    So an answer that flickers is told once, not each time.
    """

    def __init__(self) -> None:
        self.told = False
        self._length = 0

    @property
    def is_new(self) -> bool:
        """True if nothing counts yet, as in a row just made."""
        return not self.told and self._length == 0

    def add(self, answer: bool, enough: int) -> bool:
        """Count *answer*; True if `told` has turned by it."""
        self._length = self._length + 1 if answer != self.told else 0
        if self._length < enough:
            return False
        self.told, self._length = answer, 0
        return True
