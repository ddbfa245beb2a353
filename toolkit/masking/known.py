"""The values that are known to be secrets: finds them in a text in every encoding, not only as they were given."""

from collections.abc import Iterable, Iterator

from toolkit.masking.canonical import Span, Traced, canonical

# A shorter form would stand in ordinary text by chance.
LEAST_FORM = 6
# Each line of a secret with several (a PEM key) is a secret from this length on: an excerpt may contain only some.
LEAST_LINE = 12
# Characters that base64 writes of the secret alone; those at its ends depend on what stands beside it.
LEAST_BASE64 = 7
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=")


class Known:
    """A set of secrets."""

    def __init__(self) -> None:
        self._plain: dict[str, None] = {}
        self._canonical: dict[str, None] = {}
        self._base64: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._plain)

    def add(self, secrets: Iterable[str]) -> None:
        """Find *secrets* from now on."""
        for secret in secrets:
            if secret not in self._plain:
                for text in _parts(secret):
                    self._plain[text] = None
                    self._canonical.update(dict.fromkeys(_forms(text)))
                    self._base64.update(dict.fromkeys(_in_base64(text)))

    def forms(self) -> Iterator[str]:
        """Yield each form that stands for a whole secret in a text's one form."""
        from binascii import b2a_base64

        yield from self._canonical
        for secret in self._plain:
            code = b2a_base64(_content(secret), newline=False).decode().rstrip("=")
            yield from (canonical(code), canonical(code.replace("+", "-").replace("/", "_")))

    def spans(self, text: str) -> list[Span]:
        """Return where secrets are in *text*; spans may overlap."""
        spans = [span for secret in self._plain if secret in text for span in _each(text, secret)]
        form = canonical(text)
        hits = [secret for secret in self._canonical if secret in form]
        encoded = [secret for secret in self._base64 if secret in form]
        if hits or encoded:
            traced = Traced(text)
            spans += [span for secret in hits for span in _traced(text, traced, secret)]
            for secret in encoded:
                spans += [_widened(text, *traced.origin(*span)) for span in _places(traced.text, secret)]
        return spans


def _parts(secret: str) -> Iterator[str]:
    """Yield *secret*, without space around it too, and its longer lines."""
    yield secret
    if LEAST_FORM <= len(secret.strip()) < len(secret):
        yield secret.strip()
    yield from (line for line in secret.splitlines() if LEAST_LINE <= len(line) < len(secret))


def _content(text: str) -> bytes:
    """Return the bytes of *text*; one half of a surrogate pair, which JSON may write, has none of its own."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _forms(text: str) -> Iterator[str]:
    """Yield the one form of *text*, and its bytes in hexadecimal digits."""
    form = canonical(text).strip()
    if len(form) >= LEAST_FORM:
        yield form
    content = _content(text).hex()
    yield content
    yield content.upper()


def _in_base64(text: str) -> Iterator[str]:
    """Yield what base64 writes of *text* wherever it begins within the encoded bytes, in both alphabets, in the one
    form."""
    from binascii import b2a_base64

    content = _content(text)
    for prefix_bytes in range(3):
        code = b2a_base64(bytes(prefix_bytes) + content, newline=False).decode()
        # The first character that has bits of *content* alone, and one after the last.
        form = code[-(-prefix_bytes * 8 // 6) : (prefix_bytes + len(content)) * 8 // 6]
        if len(form) >= LEAST_BASE64:
            yield canonical(form)
            yield canonical(form.replace("+", "-").replace("/", "_"))


def _each(text: str, secret: str) -> Iterator[Span]:
    """Yield where *secret* stands in *text*; one of letters only as a whole word."""
    for start, end in _places(text, secret):
        joined = text[start - 1 : start].isalpha() or text[end : end + 1].isalpha()
        if not (joined and secret.isalpha()):
            yield start, end


def _traced(text: str, traced: Traced, secret: str) -> Iterator[Span]:
    """Yield where *secret* stands in *text*, whose one form has it; one of letters only as a whole word: what is beside
    it is no letter there, or was none (a quote)."""
    form = traced.text
    for form_start, form_end in _places(form, secret):
        start, end = traced.origin(form_start, form_end)
        joined = (form[form_start - 1 : form_start].isalpha() and text[start - 1 : start].isalpha()) or (
            form[form_end : form_end + 1].isalpha() and text[end : end + 1].isalpha()
        )
        if not (joined and secret.isalpha()):
            yield start, end


def _places(text: str, secret: str) -> Iterator[Span]:
    index = text.find(secret)
    while index >= 0:
        yield index, index + len(secret)
        index = text.find(secret, index + len(secret))


def _widened(text: str, start: int, end: int) -> Span:
    """Return the span with the characters beside it that hold the rest of the secret's bits."""
    start -= start > 0 and text[start - 1] in _BASE64
    end += end < len(text) and text[end] in _BASE64
    while end < len(text) and text[end] == "=":
        end += 1
    return start, end
