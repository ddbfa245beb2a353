"""Secrets that a later process must mask without knowing them: keyed digests in place of the values.

A digest finds its secret in a text's one form (canonical.py) where it stands alone: letters and digits on both sides
would make it a part of another word. Whoever has the digests can try guesses, so they belong into a file of their
owner alone; a random value they do not betray.
"""

from collections.abc import Iterable
from hashlib import blake2b

from toolkit.masking.canonical import Span, Traced
from toolkit.records import Record, encode

KEY_BYTES = 16
# Characters of which the digest is made; the length alone says where a longer secret ends.
MOST = 64


class Digests(Record, frozen=True, kw_only=True):
    """`digests`: (length of the secret in characters, digest of its first 64 characters in hexadecimal digits)."""

    key: str
    digests: tuple[tuple[int, str], ...]

    def spans(self, text: str) -> list[Span]:
        """Return where the secrets are in *text*."""
        traced = Traced(text)
        form = traced.text
        seams, digests = traced.seams, set(self.digests)
        ends = [index for index in range(len(form) + 1) if index in seams or not _is_within(form, index)]
        borders = set(ends)
        lengths = sorted({length for length, _ in self.digests}, reverse=True)
        key = bytes.fromhex(self.key)
        spans: list[Span] = []
        for start in ends:
            for length in lengths:
                if start + length in borders:
                    part = form[start : start + length]
                    if (length, _digest(key, part)) in digests:
                        spans.append(traced.origin(start, start + length))
                        break
        return spans


def of(forms: Iterable[str]) -> Digests:
    """Return the digests of *forms* of secrets, with a new key."""
    from secrets import token_bytes

    key = token_bytes(KEY_BYTES)
    return Digests(key=key.hex(), digests=tuple(sorted({(len(form), _digest(key, form)) for form in forms})))


def encoded(digests: Digests) -> bytes:
    """Return *digests* as JSON."""
    return encode(digests)


def _is_within(form: str, index: int) -> bool:
    return 0 < index < len(form) and form[index - 1].isalnum() and form[index].isalnum()


def _digest(key: bytes, form: str) -> str:
    return blake2b(form[:MOST].encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()
