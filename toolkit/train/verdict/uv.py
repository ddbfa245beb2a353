"""Pure: finds in uv's output why it failed.

uv ends with one error and its causes, from the outer to the inner. uv 0.13 writes

    error: Failed to download `needed==1.0`
      cause: Hash mismatch for `needed==1.0`

             Expected:
               sha256:...

and before it (0.6) "Caused by: ", or "(cross) ERROR", "(arrow) CAUSE" for some errors. Below the last cause stands what
a program said that uv ran: git, or the build of a package.
"""

import re
from collections.abc import Sequence

from toolkit.patterns import lazy

_ERROR = lazy(r"(?:error: |\s+× )(?P<reason>.+)")
_CAUSE = lazy(r"\s+(?:cause: |Caused by: |├─▶ |╰─▶ )(?P<cause>.+)")
_PROGRAM = lazy(r"\s*(?:\[(?:stdout|stderr)\]|--- (?:stdout|stderr))")
_HINT = lazy(r"\s*hint: .*")
_BUILDING = lazy(r"\s*Building (?P<package>\S+)")
_UPDATING = lazy(r"\s*Updating (?P<source>\S+)(?: \(.*\))?")
_BUILD_ERROR = lazy(r"(?:error: |[\w.]*(?:Error|Exception)\b|fatal error: |.*: (?:fatal )?error: )")
_SAID = lazy(r"(?:fatal|error|ssh|remote|ERROR): .+|.*Permission denied.*|Host key verification failed.*")
_EMPTY = "fatal: Could not read from remote repository"


def read_reason(lines: Sequence[str]) -> str:
    """Return the reason in the end of uv's output, "" if this is not uv's, or gives none."""
    for index, line in enumerate(lines):
        match = _ERROR.fullmatch(line)
        causes, program = _read_causes(lines[index + 1 :]) if match else ([], [])
        if match and causes:  # pip, and a program that uv ran, write such a line without causes.
            return _describe(match["reason"].rstrip(":"), causes, program, lines[:index])
    return ""


def _describe(reason: str, causes: Sequence[str], program: Sequence[str], earlier: Sequence[str]) -> str:
    if program and any(cause.startswith("Call to ") for cause in causes):
        package = _last(_BUILDING, "package", earlier)
        return f"Failed to build{package}; the build said last: {_build_error(program)}"
    if program and any("/git " in cause or "`git " in cause for cause in causes):
        words = [line for line in dict.fromkeys(program) if _SAID.fullmatch(line) and not line.startswith(_EMPTY)][:2]
        source = _last(_UPDATING, "source", earlier)
        return f"git fetch{f' of{source}' if source else ''} failed: {'; '.join(words or program[:1])}"
    if causes[0].startswith("Hash mismatch"):
        return f"a hash of requirements.txt differs from the package's: {reason}: {causes[0]}"
    return f"{reason}: {causes[0]}" if len(causes) == 1 else f"{reason}: {_join(causes)}"


def _read_causes(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the causes, each in one line, and the lines of the program that uv ran."""
    causes: list[str] = []
    program: list[str] = []
    in_program = False
    for line in lines:
        if _HINT.fullmatch(line):
            break
        if match := _CAUSE.fullmatch(line):
            causes.append(match["cause"])
            in_program = False
        elif _PROGRAM.fullmatch(line):
            in_program = True
        elif in_program:
            program.extend([line.strip()] if line.strip() else [])
        elif causes and line.strip():
            causes[-1] += f" {line.strip()}"
    return causes, program


def _join(causes: Sequence[str]) -> str:
    """Return the first cause that names an address, or the first one, and the innermost."""
    outer = next((cause for cause in causes if "://" in cause), causes[0])
    return outer if outer is causes[-1] else f"{outer}: {causes[-1]}"


def _last(pattern: "re.Pattern[str]", group: str, lines: Sequence[str]) -> str:
    found = [match[group] for line in lines if (match := pattern.fullmatch(line))]
    return f" {found[-1]}" if found else ""


def _build_error(program: Sequence[str]) -> str:
    errors = [line for line in program if _BUILD_ERROR.match(line)]
    return (errors or program)[-1]
