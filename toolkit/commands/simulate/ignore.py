"""Pure: the patterns of `.toolkitignore`, a file in the source folder that names what is not submitted.

One pattern a line, as in .gitignore: `#` begins a comment; `*`, `?` and `[a-z]` match within a name, `**` over several
folders; a backslash takes the next character as it is;
a pattern with a slash at its start or inside is of the source folder, others match at any depth; one with a slash at
its end matches folders alone; `!` takes back what an earlier line left out. What lies in a folder that is left out
stays out.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

NAME = ".toolkitignore"


class Pattern(NamedTuple):
    """A line. `is_taken_back`: it begins with "!"."""

    regex: re.Pattern[str]
    of_folders: bool
    is_taken_back: bool


def patterns(text: str) -> tuple[Pattern, ...]:
    """Return the patterns in *text*, the content of the file."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(_pattern(line) for line in lines if line.strip("/!") and not line.startswith("#"))


def is_ignored(patterns: Sequence[Pattern], name: str, *, is_folder: bool) -> bool:
    """True if the entry *name*, relative to the source folder, is left out: the last pattern that matches counts."""
    matches = (
        pattern
        for pattern in reversed(patterns)
        if (is_folder or not pattern.of_folders) and pattern.regex.fullmatch(name)
    )
    last = next(matches, None)
    return last is not None and not last.is_taken_back


def _pattern(line: str) -> Pattern:
    is_taken_back = line.startswith("!")
    glob = line.removeprefix("!")
    of_folders, body = glob.endswith("/"), glob.strip("/")
    anywhere = "/" not in body and not glob.startswith("/")
    regex = re.compile(("(?:.*/)?" if anywhere else "") + _regex(body), re.DOTALL)
    return Pattern(regex, of_folders, is_taken_back)


def _regex(glob: str) -> str:
    """Return *glob* as a regex: `**/` is any number of folders, `/**` all that is below."""
    regex = ""
    for part in re.findall(r"\*\*/|/\*\*$|\*+|\?|\[[!^]?\]?[^]/]*\]|\\.|.", glob):
        regex_part = {"**/": "(?:.*/)?", "/**": "/.*", "?": "[^/]"}.get(part)
        regex += regex_part or ("[^/]*" if part.startswith("*") else _class(part) or re.escape(part.removeprefix("\\")))
    return regex


def _class(part: str) -> str:
    """Return *part*, "[a-c]" or "[!a-c]", as a regex that matches no slash; "" if it is none."""
    if len(part) == 1 or not part.startswith("["):
        return ""
    sign = "^" if part[1] in "!^" else ""
    content = re.sub(r"([\[\]\\^&|~])", r"\\\1", part[1 + len(sign) : -1])
    try:
        re.compile(f"[{sign}{content}]")
    except re.error:
        return ""  # "[z-a]": taken as it is written.
    return f"(?!/)[{sign}{content}]"
