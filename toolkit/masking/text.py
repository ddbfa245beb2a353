"""Masks secrets in free text: values under a secret's name, in an address, in a header, or of a known shape.

Every pattern reads a text in linear time: names, gaps and shapes have a maximum length, and no search begins inside a
word (tests/masking).
"""

import re
from collections.abc import Callable, Iterator, Sequence

from toolkit.masking import shapes
from toolkit.masking.names import LEAST_NUMBER, compiled, is_secret, looks_random, strength

MASK = "******"
Span = tuple[int, int]
MOST_VALUE = 65_536
# Every name of a secret contains one of these; a text without them is not searched for names.
_HINTS = ("key", "token", "secret", "pass", "pwd", "pw", "cred", "auth", "cookie", "jwt", "dsn", "pat", "sig", "bearer")
_MORE_HINTS = ("private", "hmac", "session", "sid", "kennwort", "webhook")
_NAME = r"(?P<name>[A-Za-z_][A-Za-z0-9_.\-]{0,99})"
_QUOTE = r"\\{0,15}[\"'`]"
_ASSIGNED = rf"(?<![A-Za-z0-9_.]){_NAME}(?:{_QUOTE})?\s{{0,8}}(?:=>|:=|=(?!=)|:(?![:/]))[ \t]{{0,8}}"
_OPTION = rf"(?<![A-Za-z0-9_\-])--?{_NAME}(?:[ \t]{{1,4}}(?=[^\s\-])|{_QUOTE},\s{{0,8}})"
_LISTED = (
    rf"(?<![A-Za-z0-9_])(?i:name|key|variable)(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}}(?:{_QUOTE})?{_NAME}(?:{_QUOTE})?"
    rf"\s{{0,4}}(?:,\s{{0,40}}|\n\s{{0,40}})(?:{_QUOTE})?(?i:value)(?:{_QUOTE})?\s{{0,8}}[:=][ \t]{{0,8}}"
)
_VALUE_FIRST = rf"(?<![A-Za-z0-9_])(?i:value)(?:{_QUOTE})?\s{{0,8}}[:=][ \t]{{0,8}}"
_THEN_NAME = (
    rf"(?:{_QUOTE})?\s{{0,4}}(?:,\s{{0,40}}|\n\s{{0,40}})(?:{_QUOTE})?(?i:name|key|variable)(?:{_QUOTE})?\s{{0,8}}[:=]"
    rf"\s{{0,8}}(?:{_QUOTE})?{_NAME}"
)
_ADDRESS = r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.\-]{1,30}://(?P<user>[^\s/?#\"'<>\\@:]{0,512})(?P<rest>:[^\s/?#\"'<>]{1,2048})?@"
_HEADER = r"(?<![A-Za-z0-9_])(?i:bearer|basic|token|apikey|negotiate)[ \t]{1,4}(?P<value>[A-Za-z0-9._~+/=\-]{8,4096})"
_NETRC = r"(?<!\w)login[ \t]{1,8}\S{1,200}[ \t]{1,8}password[ \t]{1,8}(?P<value>\S{1,1024})"
_PRIVATE = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BARE = r"[^\s,;&'\"`<>(){}\[\]|\\]{1,65536}"
_LINE = r"[^\n\"'\\]{1,4096}"
# A quote within quotes in a shell.
_WITHIN = ("'\"'\"'", "'\\''")
# A header's value extends to the end of its line: "Cookie: a=1; b=2", "Authorization: Basic dXNlcg==".
_WHOLE_LINE = ("authorization", "cookie")
_CODE = r"(?:self|cls|args|cfg|config|os|settings|env|environ|opt|opts|options|hparams|params)\.[A-Za-z_]"


def mask(text: str) -> str:
    """Return *text* with a mask in place of every secret that is known by its name, place or shape."""
    return replaced(text, spans(text))


def replaced(text: str, found: Sequence[Span]) -> str:
    """Return *text* with a mask in place of each of its spans *found*, in any order."""
    if not found:
        return text
    parts, at = [], 0
    for start, end in _merged(found):
        parts += [text[at:start], MASK]
        at = end
    return "".join((*parts, text[at:]))


def mask_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Return *argv* with a mask in place of each value after an option with a secret's name (`--api_key abc`), however
    short. Secrets within one token are left to `mask`."""
    shown, name = [], ""
    for token in argv:
        is_value = bool(name) and not token.startswith("--")
        shown.append(MASK if is_value and is_secret(name, token) else token)
        name = token.lstrip("-") if token.startswith("-") and not is_value and "=" not in token else ""
    return tuple(shown)


def spans(text: str) -> list[Span]:
    """Return where the secrets of *text* are; spans may overlap."""
    lower = text.lower()
    found = list(shapes.found(text, lower))
    if any(hint in lower for hint in (*_HINTS, *_MORE_HINTS)):
        found += _assigned(text)
        found += _optioned(text)
        if "value" in lower:
            found += _listed(text)
        found += (match.span("value") for match in _finder(_NETRC)(text))
        if "-----begin" in lower:
            found += _private(text)
    if "://" in text and "@" in text:
        found += _addressed(text)
    if any(word in lower for word in ("bearer ", "basic ", "token ", "apikey ", "negotiate ")):
        found += _headed(text)
    return found


def _finder(pattern: str) -> "Callable[[str], Iterator[re.Match[str]]]":
    return compiled(pattern).finditer


def _assigned(text: str) -> Iterator[Span]:
    """Yield the values of name=value, name: value and "name": "value", however often quoted."""
    end = 0
    for match in _finder(_ASSIGNED)(text):
        if match.start() < end or strength(match["name"]) == "never":
            continue
        span = _value(text, match.end(), match["name"], prose=True)
        if span:
            end = span[1]
            yield span


def _optioned(text: str) -> Iterator[Span]:
    """Yield the values of options that stand apart from them: --api-key X, ["--password", "x"]."""
    end = 0
    for match in _finder(_OPTION)(text):
        if match.start() < end or strength(match["name"]) == "never":
            continue
        span = _value(text, match.end(), match["name"])
        if span and not _is_metavar(text[slice(*span)], match["name"]):
            end = span[1]
            yield span


def _listed(text: str) -> Iterator[Span]:
    """Yield the values of lists of names and values: {"name": "API_KEY", "value": "..."}."""
    end = 0
    for match in _finder(_LISTED)(text):
        if match.start() < end or strength(match["name"]) == "never":
            continue
        span = _value(text, match.end(), match["name"])
        if span:
            end = span[1]
            yield span
    for match in _finder(_VALUE_FIRST)(text):
        start, end = _extent(text, match.end(), most=2048)
        name = compiled(_THEN_NAME).match(text, end)
        if name and is_secret(name["name"], text[start:end]):
            yield start, end


def _addressed(text: str) -> Iterator[Span]:
    """Yield the passwords of addresses, and users that are tokens: https://user:PASSWORD@host, https://TOKEN@host."""
    for match in _finder(_ADDRESS)(text):
        start, end = match.span("rest")
        if start >= 0:
            yield start + 1, end
        elif looks_random(match["user"]):
            yield match.span("user")


def _headed(text: str) -> Iterator[Span]:
    """Yield what follows Bearer, Basic and their like where it looks like a secret."""
    for match in _finder(_HEADER)(text):
        if looks_random(match["value"]) or _is_pair(match["value"]):
            yield match.span("value")


def _private(text: str) -> Iterator[Span]:
    """Yield the bodies of PEM private keys; of one that was cut, all that follows."""
    end = 0
    for match in _finder(_PRIVATE)(text):
        if match.start() >= end:
            found = text.find("-----END", match.end())
            end = found if found >= 0 else len(text)
            yield match.end(), end


def _value(text: str, at: int, name: str, *, prose: bool = False) -> Span | None:
    """Return where the value at *at* is if it is a secret under *name*; in *prose* a plain word is none."""
    if text[at : at + 1] in ("[", "{") and strength(name) != "always":
        return None  # What is inside has names of its own.
    start, end = _extent(text, at, whole_line=any(word in name.lower() for word in _WHOLE_LINE))
    value = text[start:end]
    if not value or not is_secret(name, value):
        return None
    quoted = start > at
    if not quoted and (_reads_as_code(text, value, end) or name.lower().endswith(value.lower())):
        return None  # Code: token=token.
    spaced = prose and not quoted and text[at - 1 : at] == " "
    if spaced and value.isalpha() and not _is_password(name):
        return None  # Prose: "token: identifier".
    if spaced and value.isdigit() and len(value) < LEAST_NUMBER:
        return None  # A vocabulary: "password": 9206.
    return start, end


def _extent(text: str, at: int, *, whole_line: bool = False, most: int = MOST_VALUE) -> Span:
    """Return where the value that begins at *at* lies: within its quotes, its brackets, or up to the next delimiter."""
    opened = compiled(_QUOTE).match(text, at)
    if opened:
        return opened.end(), _closing(text, opened.end(), opened[0], most)
    if text[at : at + 1] in ("[", "{"):
        return at, _bracketed(text, at, most)
    if whole_line:
        match = compiled(_LINE).match(text, at)
        return at, match.end() if match else at
    bare = compiled(_BARE).match(text, at)
    return at, bare.end() if bare else at


def _closing(text: str, start: int, quote: str, most: int) -> int:
    """Return where the value that *quote* opened ends: at the same quote, else at the line's end (a cut text)."""
    at = start
    for _ in range(100):
        at = text.find(quote, at, start + most)
        if at < 0:
            break
        within = next((each for each in _WITHIN if text.startswith(each, at)), quote if text[at - 1] == "\\" else "")
        if not within:
            return at
        at += len(within)
    line = text.find("\n", start, start + most)
    return line if line >= 0 else min(len(text), start + most)


def _bracketed(text: str, start: int, most: int) -> int:
    """Return where the bracket at *start* is closed, else the end of its line."""
    depth = 0
    for match in compiled(r"[\[\]{}\n]").finditer(text, start, start + most):
        if match[0] == "\n" and not depth:
            return match.start()
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    line = text.find("\n", start, start + most)
    return line if line >= 0 else min(len(text), start + most)


def _reads_as_code(text: str, value: str, end: int) -> bool:
    """True if *value* is an expression: getpass.getpass(...), environ["KEY"], args.password."""
    return (text[end : end + 1] in ("(", "[") and value.replace(".", "_").isidentifier()) or bool(
        compiled(_CODE).match(value)
    )


def _is_password(name: str) -> bool:
    return any(part in name.lower() for part in ("pass", "pwd", "secret", "cookie", "authorization", "cred"))


def _is_metavar(value: str, name: str) -> bool:
    """True if *value* only stands for one: --api-key API_KEY."""
    return value.isupper() and value.lower().strip("_") in name.lower().replace("-", "_")


def _is_pair(text: str) -> bool:
    """True if *text* is base64 of user:password."""
    import binascii

    try:
        return b":" in binascii.a2b_base64(text + "=" * (-len(text) % 4))
    except ValueError:
        return False


def _merged(found: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(found):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
