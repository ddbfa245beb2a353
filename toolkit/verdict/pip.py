"""Pure: finds in pip's output why pip failed.

The last "ERROR: ..." is the reason, unless it is only a code such as metadata-generation-failed (pip 21.3 and newer).
Then two lines below it name the problem and the package:

    error: metadata-generation-failed

    (cross) Encountered error while generating package metadata.
    (arrow) slow

and the reason is further up: the last line of the build's output, before "[end of output]". Cross and arrow are missing
if pip may not write Unicode.
"""

from toolkit.patterns import lazy
from toolkit.verdict import tail as ends

# "Exception:" opens a traceback of pip itself; the reason is before it. The other opens the output of a build.
_ERROR = lazy(r"\s*(?:ERROR|error): (?!Exception:$|subprocess-exited-with-error$)(?P<reason>.+)")
_CODE = lazy(r"[a-z]+(?:-[a-z]+)+")
_MARKS = lazy(r"^(?:×|│|╰─>)?\s*")
_END = "[end of output]"
# A warning before "No matching distribution found" if pip could not reach the index.
_UNREACHED = lazy(r"WARNING: Retrying \(.*?\) after connection broken by [\"'](?P<error>.+?)[\"']+: /\S*")
# The prefixes before the message: "NewConnectionError('<... object at 0x7f>: ", "NameResolutionError(\"HTTPS...(...):
# ".
_OBJECT = lazy(r"^\w+\([\"'].*?(?:>|\)): ")
_NONE_FOUND = ("No matching distribution found", "Could not find a version")


def cause(tail: bytes) -> str:
    """Return pip's reason from the end of one of its streams, "" if it gave none."""
    lines = [line.rstrip() for line in ends.lines(tail)]
    found = [(at, match["reason"].strip()) for at, line in enumerate(lines) if (match := _ERROR.fullmatch(line))]
    if not found:
        return ""
    at, reason = found[-1]
    if _CODE.fullmatch(reason):
        reason = _explained(lines[at + 1 :]) or reason
    if reason.startswith(_NONE_FOUND) and (error := _unreached(lines[:at])):
        return f"{reason}; pip could not reach its index: {error}"
    said = _said_by_the_build(lines[:at])
    return f"{reason}; the build said last: {said}" if said and said not in reason else reason


def _unreached(lines: list[str]) -> str:
    """Return why pip could not reach the index (the message of urllib3's error), "" if it could."""
    found = next((match for line in reversed(lines) if (match := _UNREACHED.match(line))), None)
    return _OBJECT.sub("", found["error"]).removesuffix("')").removesuffix('")') if found else ""


def _explained(lines: list[str]) -> str:
    said = []
    for line in lines:
        if line.startswith(("note:", "hint:")):
            break
        if line:
            said.append(_MARKS.sub("", line))
    return ": ".join(text.rstrip(".:") for text in said[:2])


def _said_by_the_build(lines: list[str]) -> str:
    ended = [at for at, line in enumerate(lines) if line.strip() == _END]
    if not ended:
        return ""
    return next((line.strip() for line in reversed(lines[: ended[-1]]) if line.strip()), "")
