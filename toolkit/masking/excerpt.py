"""Pure: cuts a text that is masked only later, between words: of a secret that is cut, nothing recognises the rest."""

# A longer word, or one of most of the room, is cut where the room ends: a token or an address is shorter.
LONGEST_WORD = 256
_BETWEEN = (" ", "\t", "\n", '"', "'", "`")


def beginning(text: str, room: int) -> str:
    """Return *text*, or its beginning and "..." in at most *room* characters (3 or more)."""
    if len(text) <= room:
        return text
    most = room - 3
    word = min(LONGEST_WORD, room * 2 // 3)
    return f"{text[:most] if text[most] in _BETWEEN else text[: _last_gap(text, most, word)]}..."


def end(text: str, room: int, *, longest_word: int = LONGEST_WORD) -> str:
    """Return *text*, or "..." and its end in at most *room* characters (3 or more)."""
    if len(text) <= room:
        return text
    first = len(text) - room + 3
    word = min(longest_word, room * 2 // 3)
    return f"...{text[first:] if text[first - 1] in _BETWEEN else text[_first_gap(text, first, word) :]}"


def _last_gap(text: str, most: int, longest_word: int) -> int:
    gap = max(text.rfind(character, max(0, most - longest_word), most) for character in _BETWEEN)
    return gap if gap > 0 else most


def _first_gap(text: str, first: int, longest_word: int) -> int:
    gaps = (text.find(character, first, first + longest_word) for character in _BETWEEN)
    return min((gap for gap in gaps if gap >= 0), default=first)
