"""Masks secrets in free text: values under a secret's name, in an address, in a header, or of a known shape.

Every pattern reads a text in linear time: names, gaps and shapes have a maximum length, and no search begins inside a
word (tests/masking).
"""

import itertools
import re
from bisect import bisect_right
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
# What opens a value: quotes, also three, or two as CSV and SQL write one within another; before them the letters of
# Python's and other languages' strings, a shell's $, YAML's tag or anchor, a call that only wraps a text.
_OPENED = (
    r"(?:!!?[A-Za-z][A-Za-z0-9/:.]{0,40}[ \t]{1,4}|&\w{1,40}[ \t]{1,4})?"
    r"(?:(?:str|bytes|bytearray|repr|String|SecretStr|SecretBytes|Secret|Some|str_|bytes_|Text|np\.str_)\([ \t]{0,4})?"
    r"(?:[bBrRuUfFL]|[bBfFrR]{2}|\$|@)?"
    r"(?P<quote>\\{0,15}(?:\"{3}|'{3}|\"\"(?=[A-Za-z0-9])|''(?=[A-Za-z0-9])|[\"'`]))"
)
_TAG = r"!!?[A-Za-z][A-Za-z0-9/:.]{0,40}[ \t]{1,4}|&\w{1,40}[ \t]{1,4}"
# YAML's tags for what stands elsewhere.
_TAG_OF_PLACE = r"!(?i:env|vault|secret|ref|sub|getatt|importvalue|include)\b"
_BLOCK = r"[|>][-+0-9]{0,2}[ \t]{0,8}\n(?P<indent>[ \t]{1,80})[^\n]{0,4096}(?:\n(?P=indent)[^\n]{0,4096}){0,1000}"
_INTERPOLATED = r"-?\$[{(]|\{\{|%\("
_ARN = r"arn:[a-z0-9-]{2,20}:[a-z0-9-]{2,30}:[a-z0-9-]{0,30}:[0-9]{0,12}:$"
# The word before a name in a sentence: "next token", "cache key".
_WORD_BEFORE = r"(?<![A-Za-z])[A-Za-z]{2,20}[ ]$"
_ASSIGNED = rf"(?<![A-Za-z0-9_.]){_NAME}(?:{_QUOTE}\]?)?\s{{0,8}}(?:=>|:=|=(?!=)|:(?![:/]))[ \t]{{0,8}}"
# API_KEY X1 (a Dockerfile, `aws configure set`), setdefault("API_KEY", "X1"): of these only what looks random.
# So long a word is rarer than a name: it is searched first, then the name before it, within MOST_BESIDE characters.
_LONG_WORD = rf"[ \t,](?:(?<=,)\s{{0,8}}{_QUOTE})?(?P<value>[A-Za-z0-9+/=._~\-]{{16,4096}})"
_BESIDE = rf"(?<![A-Za-z0-9_.]){_NAME}(?:[ \t]{{1,4}}|{_QUOTE}\s{{0,4}},\s{{0,8}}{_QUOTE})\Z"
MOST_BESIDE = 145
_OPTION = rf"(?<![A-Za-z0-9_\-])--?{_NAME}(?:[ \t]{{1,4}}(?=[^\s\-])|{_QUOTE},\s{{0,8}})"
_LISTED = (
    rf"(?<![A-Za-z0-9_])(?i:name|key|variable)(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}}(?:{_QUOTE})?{_NAME}(?:{_QUOTE})?"
    rf"(?:\s{{0,4}},\s{{0,40}}|\s{{1,40}})(?:{_QUOTE})?(?i:value)(?:{_QUOTE})?\s{{0,8}}[:=][ \t]{{0,8}}"
)
_VALUE_FIRST = rf"(?<![A-Za-z0-9_])(?i:value)(?:{_QUOTE})?\s{{0,8}}[:=][ \t]{{0,8}}"
_THEN_NAME = (
    rf"(?:{_QUOTE})?\s{{0,4}}(?:,\s{{0,40}}|\n\s{{0,40}})(?:{_QUOTE})?(?i:name|key|variable)(?:{_QUOTE})?\s{{0,8}}[:=]"
    rf"\s{{0,8}}(?:{_QUOTE})?{_NAME}"
)
_ADDRESS = r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.\-]{1,30}://(?P<user>[^\s/?#\"'<>\\@:]{0,512})(?P<then>[:@])"
_AUTHORITY = r"[^\s/?#\"'<>]{1,2048}"
# A password with characters that an address should have written as %2F, %3F and %23.
_LOOSE_AUTHORITY = r"[^\s\"'<>\\]{1,1024}"
_PORT = r"[0-9]{1,5}(?:[/?#]|$)"
_HOST = r"@[A-Za-z0-9\[](?:[A-Za-z0-9.:_\-\]]{0,255})(?:[/?#,;)\]}]|$)"
# <password>...</password>, also escaped; a property list's <key> and <string>, Hadoop's <name> and <value>.
_LT, _GT = "(?:<|&lt;)", "(?:>|&gt;)"
_TEXT = rf"{_GT}(?:<!\[CDATA\[)?(?P<value>[^<&\]]{{1,4096}})"
_ELEMENT = rf"{_LT}(?:[A-Za-z0-9_\-]{{1,40}}:)?{_NAME}(?:[ \t][^<>&\n]{{0,200}})?{_TEXT}"
_ELEMENTS = (
    rf"{_LT}(?:key|name){_GT}\s{{0,8}}{_NAME}\s{{0,8}}{_LT}/(?:key|name){_GT}\s{{0,40}}{_LT}(?:string|value){_TEXT}"
)
# Options of programs whose names do not say that a secret follows. A gap is a space, or the quotes of a list.
_GAP = r"(?:[ \t]{1,4}|[\"'],[ \t]{0,4}[\"'])"
_PROGRAM = r"(?:^|[\s/'\"|;&(])(?P<program>[a-z0-9][a-z0-9_.\-]{1,20})(?=$|[\s'\"])"
_OF_PROGRAMS: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"curl", "http", "https", "xh"}),
        rf"(?<![\w-])(?:-u|-U|-a|--user|--proxy-user|--auth)(?:{_GAP}|=)?[\"']?[^\s:\"'$]{{1,200}}:(?P<value>[^\s\"'$][^\s\"']{{0,500}})",
    ),
    (
        frozenset({"mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlsh", "mariadb", "mariadb-dump", "sshpass"}),
        r"(?<![\w-])-p[\"']?(?P<value>[^\s\"'$][^\s\"']{0,200})",
    ),
    (
        frozenset({"sshpass", "docker", "podman", "mongo", "mongosh", "mongodump", "helm", "skopeo"}),
        # Not the ports of `docker run -p 127.0.0.1:8080:80`.
        rf"(?<![\w-])-p{_GAP}[\"']?(?![0-9.\-]{{0,40}}:[0-9])(?P<value>[^\s\"'$-][^\s\"']{{0,200}})",
    ),
    (
        frozenset({"redis-cli", "ldapsearch", "ldapadd", "ldapmodify"}),
        rf"(?<![\w-])-[aw]{_GAP}[\"']?(?P<value>[^\s\"'$-][^\s\"']{{0,200}})",
    ),
    (
        frozenset({"wandb", "vault"}),
        rf"(?<![\w-])login(?:{_GAP}--?[a-z\-]{{1,40}}){{0,4}}{_GAP}[\"']?(?P<value>[A-Za-z0-9._\-]{{16,200}})(?![\w:/])",
    ),
    (frozenset({"openssl"}), r"(?<![\w-])pass:(?P<value>[^\s\"'$][^\s\"']{0,200})"),
    (
        frozenset({"smbclient", "mount.cifs", "rpcclient"}),
        r"(?<![\w-])-U[ \t]{1,4}[\"']?[^\s%\"']{1,200}%(?P<value>[^\s\"']{1,200})",
    ),
)
_COLOUR = r"\x1b\[[0-9;:]{0,40}m"
# How far behind the name of its program an option is read as its own.
MOST_OF_COMMAND = 500
_HEADER = r"(?<![A-Za-z0-9_])(?i:bearer|basic|token|apikey|negotiate)[ \t]{1,4}(?P<value>[A-Za-z0-9._~+/=\-]{8,4096})"
_NETRC = r"(?<!\w)login[ \t]{1,8}\S{1,200}[ \t]{1,8}password[ \t]{1,8}(?P<value>\S{1,1024})"
_PRIVATE = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BARE = r"[^\s,;&'\"`<>(){}\[\]|\\]{1,65536}"
# The decision needs no more; only what is a secret is followed to its end.
MOST_DECIDING = 256
# Before its name, a value is as long at most; one in brackets costs more for each character.
MOST_BEFORE_NAME = 1024
MOST_BRACKETED_BEFORE_NAME = 200
_LINE = r"[^\n\"'\\]{1,4096}"
_NUMBER = r"[+-]?[0-9][0-9_,]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[kKmMbBgGtT%]?"
# A header's cookie: name=value.
_COOKIE = r"[^\s=;,]{1,200}="
# A sentence goes on with a word that is no name of a value.
_NEXT_WORD = r" [a-z]{1,20}(?![\w=:.\-/])"
# A quote within quotes in a shell.
_WITHIN = ("'\"'\"'", "'\\''")
# A header's value extends to the end of its line: "Cookie: a=1; b=2", "Authorization: Basic dXNlcg==".
_WHOLE_LINE = ("authorization", "cookie")
_CODE = r"(?:self|cls|args|cfg|config|os|settings|env|environ|opt|opts|options|hparams|params)\.[A-Za-z_]"


def mask(text: str) -> str:
    """Return *text* with a mask in place of every secret that is known by its name, place or shape."""
    return mask_spans(text, find_spans(text))


def mask_spans(text: str, secret_spans: Sequence[Span]) -> str:
    """Return *text* with a mask in place of each of *secret_spans*, in any order."""
    if not secret_spans:
        return text
    parts, end_of_last = [], 0
    for start, end in _merge_spans(secret_spans):
        parts += [text[end_of_last:start], MASK]
        end_of_last = end
    return "".join((*parts, text[end_of_last:]))


def mask_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """Return *argv* with a mask in place of each value after an option with a secret's name (`--api_key abc`), however
    short. Secrets within one token are left to `mask`."""
    masked_tokens, name = [], ""
    for token in argv:
        is_value = bool(name) and not token.startswith("--")
        masked_tokens.append(MASK if is_value and is_secret(name, token) else token)
        name = token.lstrip("-") if token.startswith("-") and not is_value and "=" not in token else ""
    return tuple(masked_tokens)


def find_spans(text: str) -> list[Span]:
    """Return where the secrets of *text* are; spans may overlap. A terminal's colours are not read."""
    if "\x1b" not in text:
        return _find_spans(text)
    colours = [match.span() for match in _finder(_COLOUR)(text)]
    widths = list(itertools.accumulate(end - start for start, end in colours))
    # Where each colour would stand in the text without them.
    places = [end - width for (_, end), width in zip(colours, widths, strict=True)]

    def origin(index: int) -> int:
        count = bisect_right(places, index)
        return index + (widths[count - 1] if count else 0)

    return [
        (origin(start), origin(end - 1) + 1)
        for start, end in _find_spans(compiled(_COLOUR).sub("", text))
        if end > start
    ]


def _find_spans(text: str) -> list[Span]:
    lower = text.lower()
    secret_spans = list(shapes.find_shapes(text, lower))
    if any(hint in lower for hint in (*_HINTS, *_MORE_HINTS)):
        secret_spans += _find_assigned(text)
        secret_spans += _find_optioned(text)
        secret_spans += _find_beside(text)
        if "value" in lower:
            secret_spans += _find_listed(text)
        secret_spans += (match.span("value") for match in _finder(_NETRC)(text))
        if "-----begin" in lower:
            secret_spans += _find_private(text)
        if "</" in text or "&lt;/" in text:
            secret_spans += _find_in_elements(text)
    if any(option in text for option in (" -", "'-", '"-', "pass:", "login")):
        secret_spans += _find_of_programs(text)
    if "://" in text and "@" in text:
        secret_spans += _find_addressed(text)
    if any(word in lower for word in ("bearer ", "basic ", "token ", "apikey ", "negotiate ")):
        secret_spans += _find_headed(text)
    return secret_spans


def _finder(pattern: str) -> "Callable[[str], Iterator[re.Match[str]]]":
    return compiled(pattern).finditer


def _find_assigned(text: str) -> Iterator[Span]:
    """Yield the values of name=value, name: value and "name": "value", however often quoted."""
    end = 0
    for match in _finder(_ASSIGNED)(text):
        if match.start() < end or strength(match["name"]) == "never" or _is_part(text, match):
            continue
        span = _find_value(text, match.end(), match["name"], prose=True)
        if span:
            end = span[1]
            yield span


def _is_part(text: str, match: "re.Match[str]") -> bool:
    """True if the name is the end of a path (/etc/passwd: ...), of an ARN (...:secret:name), or of a term in a sentence
    (next token: ...) that is no secret's."""
    start = match.start("name")
    assigns = "=" in text[match.end("name") : match.end()]
    if assigns:
        return False
    if text[start - 1 : start] == "/":
        return True
    text_before = text[max(start - 120, 0) : start]
    if text_before.endswith(":") and compiled(_ARN).search(text_before):
        return True
    word = compiled(_WORD_BEFORE).search(text_before[-24:])
    return word is not None and strength(f"{word[0].strip()}_{match['name']}") == "never"


def _find_optioned(text: str) -> Iterator[Span]:
    """Yield the values of options that stand apart from them: --api-key X, ["--password", "x"]."""
    end = 0
    for match in _finder(_OPTION)(text):
        if match.start() < end or strength(match["name"]) == "never":
            continue
        span = _find_value(text, match.end(), match["name"])
        if span and not _is_metavar(text[slice(*span)], match["name"]):
            end = span[1]
            yield span


def _find_beside(text: str) -> Iterator[Span]:
    """Yield what stands behind a secret's name without a sign between them, where it looks like a secret."""
    for match in _finder(_LONG_WORD)(text):
        if looks_random(match["value"]):
            start, end = match.span("value")
            name = compiled(_BESIDE).search(text, max(start - MOST_BESIDE, 0), start)
            if name and strength(name["name"]) == "always":
                yield start, end


def _find_listed(text: str) -> Iterator[Span]:
    """Yield the values of lists of names and values: {"name": "API_KEY", "value": "..."}."""
    end = 0
    for match in _finder(_LISTED)(text):
        if match.start() < end or strength(match["name"]) == "never":
            continue
        span = _find_value(text, match.end(), match["name"])
        if span:
            end = span[1]
            yield span
    for match in _finder(_VALUE_FIRST)(text):
        bracketed = text[match.end() : match.end() + 1] in ("[", "{")
        most = MOST_BRACKETED_BEFORE_NAME if bracketed else MOST_BEFORE_NAME
        start, end = _find_extent(text, match.end(), most=most, most_bare=most)
        name = compiled(_THEN_NAME).match(text, end)
        if name and is_secret(name["name"], text[start:end]):
            yield start, end


def _find_addressed(text: str) -> Iterator[Span]:
    """Yield the passwords of addresses, and users that are tokens: https://user:PASSWORD@host, https://TOKEN@host."""
    end = 0
    for match in _finder(_ADDRESS)(text):
        if match.start() < end:
            continue
        if match["then"] == "@":
            if looks_random(match["user"]):
                yield match.span("user")
            continue
        start = match.end()
        strict = compiled(_AUTHORITY).match(text, start)
        sign = text.rfind("@", start, strict.end()) if strict else -1
        if sign <= start and not compiled(_PORT).match(text, start):
            loose = compiled(_LOOSE_AUTHORITY).match(text, start)
            sign = text.rfind("@", start, loose.end()) if loose else -1
            if sign > start and not compiled(_HOST).match(text, sign, loose.end() if loose else sign):
                sign = -1
        if sign > start:
            end = sign
            yield start, sign


def _find_in_elements(text: str) -> Iterator[Span]:
    """Yield the texts of XML elements with a secret's name."""
    for pattern in (_ELEMENT, _ELEMENTS):
        for match in _finder(pattern)(text):
            value = match["value"]
            plain = value.isalpha() and not _is_password(match["name"])
            if value.strip() and not plain and is_secret(match["name"], value):
                yield match.span("value")


def _find_of_programs(text: str) -> Iterator[Span]:
    """Yield the secrets behind options of well-known programs: curl -u user:PASSWORD, mysql -pPASSWORD."""
    for programs, pattern in _OF_PROGRAMS:
        if not any(program + after in text for program in programs for after in (" ", "'", '"')):
            continue
        places: list[Span] | None = None
        for match in _finder(pattern)(text):
            if places is None:
                program_matches = (match for match in _finder(_PROGRAM)(text) if match["program"] in programs)
                places = [program_match.span("program") for program_match in program_matches]
            place = bisect_right(places, (match.start(), 0)) - 1
            start, end = places[place] if place >= 0 else (0, match.start() + 1)
            if end <= match.start() <= start + MOST_OF_COMMAND and "\n" not in text[end : match.start()]:
                yield match.span("value")


def _find_headed(text: str) -> Iterator[Span]:
    """Yield what follows Bearer, Basic and their like where it looks like a secret."""
    for match in _finder(_HEADER)(text):
        if looks_random(match["value"]) or _is_pair(match["value"]):
            yield match.span("value")


def _find_private(text: str) -> Iterator[Span]:
    """Yield the bodies of PEM private keys; of one that was cut, all that follows."""
    end = 0
    for match in _finder(_PRIVATE)(text):
        if match.start() >= end:
            footer = text.find("-----END", match.end())
            end = footer if footer >= 0 else len(text)
            yield match.end(), end


def _find_value(text: str, start_of_value: int, name: str, *, prose: bool = False) -> Span | None:
    """Return where the value at *start_of_value* is if it is a secret under *name*; in *prose* a plain word is none."""
    if text[start_of_value : start_of_value + 1] in ("[", "{") and strength(name) != "always":
        return None  # What is inside has names of its own.
    if compiled(_INTERPOLATED).match(text, start_of_value) or compiled(_TAG_OF_PLACE).match(text, start_of_value):
        return None
    whole_line = any(word in name.lower() for word in _WHOLE_LINE)
    start, end = _find_extent(text, start_of_value, whole_line=whole_line)
    value = text[start:end]
    if not value or not is_secret(name, value[:MOST_DECIDING]):
        return None
    quoted = bool(compiled(_OPENED).match(text, start_of_value))
    if quoted:
        return start, end
    if end - start == MOST_DECIDING:
        start, end = start, compiled(_BARE).match(text, start).end()  # type: ignore[union-attr]
    if _reads_as_code(text, value, end) or name.lower().endswith(value.lower()):
        return None  # Code: token=token.
    if name.lower().endswith("cookie") and not compiled(_COOKIE).match(value):
        # No header, but a class of that name: "cookie: 0.93".
        start, end = _find_extent(text, start_of_value)
        return (start, end) if looks_random(text[start:end]) else None
    if prose and text[start_of_value - 1 : start_of_value] == " " and _reads_as_prose(text, value, end, name):
        return None
    return start, end


def _reads_as_prose(text: str, value: str, end: int, name: str) -> bool:
    """True if *value* is a word or number of a sentence or table: "token: identifier", "secret: 0.12"."""
    if compiled(_NUMBER).fullmatch(value) and sum(character.isdigit() for character in value) < LEAST_NUMBER:
        return True  # A vocabulary: "password": 9206.
    if not value.isalpha():
        return False
    return not _is_password(name) or compiled(_NEXT_WORD).match(text, end) is not None


def _find_extent(
    text: str, start: int, *, whole_line: bool = False, most: int = MOST_VALUE, most_bare: int = MOST_DECIDING
) -> Span:
    """Return where the value from *start* lies: within its quotes, its brackets, or up to the next delimiter."""
    opened = compiled(_OPENED).match(text, start)
    if opened:
        return opened.end(), _find_closing(text, opened.end(), opened["quote"], most)
    tag = compiled(_TAG).match(text, start)
    start = tag.end() if tag else start
    if text[start : start + 1] in ("[", "{"):
        return start, _find_bracket_end(text, start, most)
    block = compiled(_BLOCK).match(text, start)
    if block:
        return block.end("indent"), block.end()
    if whole_line:
        match = compiled(_LINE).match(text, start)
        return start, match.end() if match else start
    bare = compiled(_BARE).match(text, start, start + most_bare)
    return start, bare.end() if bare else start


def _find_closing(text: str, start: int, quote: str, most: int) -> int:
    """Return where the value that *quote* opened ends: at the same quote, else at the line's end (a cut text)."""
    index = start
    for _ in range(100):
        index = text.find(quote, index, start + most)
        if index < 0:
            break
        within = next(
            (escaped_quote for escaped_quote in _WITHIN if text.startswith(escaped_quote, index)),
            quote if text[index - 1] == "\\" else "",
        )
        if not within:
            return index
        index += len(within)
    line = text.find("\n", start, start + most)
    return line if line >= 0 else min(len(text), start + most)


def _find_bracket_end(text: str, start: int, most: int) -> int:
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
    return any(part in name.lower() for part in ("pass", "pwd", "secret", "cookie", "cred"))


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


def _merge_spans(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
