"""Pure: assembles lines from the pieces in which a pipe delivers them.

Only "\\n" ends a line: a progress bar's "\\r" stays inside its line. Bytes are never changed or decoded.
"""

LIMIT_BYTES = 1 << 20


class LineBuffer:
    """Holds the unfinished last line of one stream, at most *limit_bytes* of it.

    A longer line is returned in pieces as it comes, so memory stays bounded and nothing is lost. `long_lines` counts
    such lines.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._in_long_line = False
        self.long_lines = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the unfinished line held here."""
        return self._held_bytes

    def feed(self, piece: bytes) -> tuple[bytes, bytes]:
        """Return (complete lines, piece of an overlong line), in the order of the stream; either may be empty.

        After a piece of an overlong line, the next complete lines begin with the rest of that line.
        """
        cut = piece.rfind(b"\n") + 1
        if not cut:
            return b"", self._hold(piece)
        if self._held:
            self._held.append(piece if cut == len(piece) else piece[:cut])
            lines = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
        else:
            lines = piece if cut == len(piece) else piece[:cut]
        self._in_long_line = False
        return lines, self._hold(piece[cut:]) if cut < len(piece) else b""

    def flush(self) -> bytes:
        """Remove the unfinished line and return it: at the stream's end, or when its reader should not wait longer."""
        held = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return held

    def held(self) -> bytes:
        """Return the unfinished line without removing it."""
        if len(self._held) > 1:
            self._held = [b"".join(self._held)]
        return self._held[0] if self._held else b""

    def take(self, count: int) -> bytes:
        """Remove the first *count* bytes of the unfinished line and return them."""
        held = self.held()
        self._held = [held[count:]] if count < len(held) else []
        self._held_bytes = len(held) - count
        return held[:count]

    def _hold(self, piece: bytes) -> bytes:
        if not piece:
            return b""
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes <= self._limit:
            return b""
        if not self._in_long_line:
            self.long_lines += 1
            self._in_long_line = True
        return self.flush()


def prefixed(block: bytes, prefix: bytes) -> tuple[bytes, memoryview | bytes]:
    """Return *block*, which begins at a line's start, with *prefix* before each line and a newline at its end.

    Write the two parts one after the other: so a large block is copied once instead of three times.
    """
    if not prefix:
        return b"", block if block.endswith(b"\n") else block + b"\n"
    marked = block.replace(b"\n", b"\n" + prefix)
    if block.endswith(b"\n"):
        return prefix, memoryview(marked)[: -len(prefix)]
    return prefix, marked + b"\n"
