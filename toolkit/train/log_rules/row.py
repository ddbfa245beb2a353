"""Pure: a state that changes only after several equal answers in a row."""


class Row:
    """Counts answers: `state` becomes true after *enough* true answers in a row, false after as many false ones.

    So an answer that flickers changes nothing.
    """

    def __init__(self) -> None:
        self.state = False
        self._length = 0

    @property
    def is_new(self) -> bool:
        """True if nothing is counted: the row is as at its start."""
        return not self.state and self._length == 0

    def add(self, answer: bool, enough: int) -> bool:
        """Count *answer*; return True if it changed `state`."""
        self._length = self._length + 1 if answer != self.state else 0
        if self._length < enough:
            return False
        self.state, self._length = answer, 0
        return True
