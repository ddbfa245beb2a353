"""Pure: finds in pip's output why it failed (uv's: uv.py).

The last "ERROR: ..." is the reason, with what belongs to it: which packages contradict each other, whose hash differs.
A code such as metadata-generation-failed (pip 21.3 and newer) has two lines below it that name the problem and the
package:

    error: metadata-generation-failed

    (cross) Encountered error while generating package metadata.
    (arrow) slow

and the reason is further up: the error in the build's output, before "[end of output]". Cross and arrow are missing if
pip may not write Unicode. Of a program that pip runs to fetch a package (git), the reason is what that program said.
"""

from collections.abc import Sequence

from toolkit.patterns import lazy
from toolkit.train.verdict import tail, uv

# "Exception:" opens a traceback of pip itself; the reason is before it. The next opens the output of a program, and
# ResolutionImpossible only leads to a page.
_ERROR = lazy(
    r"(?P<indent>\s*)(?:ERROR|error): (?!Exception:$|subprocess-exited-with-error$|ResolutionImpossible:)(?P<reason>.+)"
)
_CODE = lazy(r"[a-z]+(?:-[a-z]+)+")
_MARKS = lazy(r"^(?:×|│|╰─>|╰─▶)?\s*")
_END = "[end of output]"
_OUTPUT = lazy(r"\s*(?:╰─> )?\[\d+ lines? of output\]$")
_BUILD_ERROR = lazy(r"\s*(?:error: |[\w.]*(?:Error|Exception)\b|fatal error: |.*: (?:fatal )?error: )")
# A warning before "No matching distribution found" if pip could not reach the index.
_UNREACHED = lazy(r"WARNING: Retrying \(.*?\) after connection broken by [\"'](?P<error>.+?)[\"']+: /\S*")
# The prefixes before the message: "NewConnectionError('<... object at 0x7f>: ", "NameResolutionError(\"HTTPS...(...):
# ".
_OBJECT = lazy(r"^\w+\([\"'].*?(?:>|\)): ")
_NONE_FOUND = ("No matching distribution found", "Could not find a version")
_CONFLICT = "The conflict is caused by:"
_HASH = "THESE PACKAGES DO NOT MATCH THE HASHES"
_NO_HASH = "Hashes are required in --require-hashes mode"
# "Running command git clone ...", and the failure: "(cross) git clone ... did not run successfully.", "Failed to build
# 'git+https://...' when git clone ..." (pip 25.3), "Command errored out with exit status 128: git clone ..." (pip 20).
_RUNNING = lazy(r"\s*Running command (?P<program>git|hg|svn|bzr) ")
_FETCH_FAILED = lazy(r"(?:\s*(?:×|x)? ?|.*\bwhen |.*exit status \d+: )(?P<program>git|hg|svn|bzr) (?P<verb>[a-z]+)\b.*")
_SOURCE = lazy(r"\s*(?:Collecting|Obtaining) (?:\S+ @ )?(?P<source>(?:git|hg|svn|bzr)\+\S+)")
# What git, ssh and a server say of a failure. The last two are in every failure of ssh.
_SAID = lazy(
    r"\s*(?P<said>(?:fatal|error|ssh|remote|ERROR|abort): .+|.*Permission denied.*|Host key verification failed.*"
    r"|.*[Cc]ould not resolve .*)"
)
_EMPTY = ("fatal: Could not read from remote repository", "error: subprocess-exited-with-error")
# Below a code, in older pips (23.2); and what pip says when it begins with a package.
_NO_PACKAGE = "See above for output"
_PACKAGE = lazy(r"\s*(?:Processing|Collecting|Obtaining) (?P<package>\S+)")
MOST_LINES = 4


def read_reason(stream: bytes, other: bytes = b"") -> str:
    """Return pip's reason from the end of one of its streams, "" if it gave none. *other*: the end of the other stream,
    on which pip tells what it is at, and what a conflict is about."""
    lines, other_lines = ([line.rstrip() for line in tail.split_lines(stream)] for stream in (stream, other))
    if text := uv.read_reason(lines):
        return text
    fetched = _read_failed_fetch(lines, other_lines)
    if fetched:
        return fetched
    errors = [(index, match) for index, line in enumerate(lines) if (match := _ERROR.fullmatch(line))]
    # An indented one is of a build, and counts only where pip itself gave no reason.
    errors = [(index, match) for index, match in errors if not match["indent"]] or errors
    if not errors:
        return ""
    index, reason = errors[-1][0], errors[-1][1]["reason"].strip()
    more = lines[index + 1 :]
    if _CODE.fullmatch(reason):
        reason = _read_explanation(more, [*lines[:index], *other_lines]) or reason
    conflict = next((block for block in (more, other_lines) if _CONFLICT in block), None)
    if conflict is not None and "conflict" in reason:
        return f"{reason.rstrip('.')}: {_join_lines(_take_indented(conflict[conflict.index(_CONFLICT) + 1 :]))}"
    if reason.startswith((_HASH, _NO_HASH)):
        return _describe_hashes(reason, more)
    if reason.startswith(_NONE_FOUND) and (error := _read_unreached_index(lines[:index])):
        return f"{reason}; pip could not reach its index: {error}"
    build_error = _read_build_error(lines[:index])
    blocks = [place for place, line in enumerate(lines[:index]) if line.strip().startswith("×")]
    if not build_error and blocks and reason.startswith("Failed to build"):
        return f"{reason}; {_read_explanation([line.strip() for line in lines[blocks[-1] : index]])}"
    return f"{reason}; the build said last: {build_error}" if build_error and build_error not in reason else reason


def _describe_hashes(reason: str, more: Sequence[str]) -> str:
    """Return whose hash differs, "expected" and "got"; or which packages have none."""
    lines = _take_indented(more)
    if reason.startswith(_NO_HASH):
        return f"{reason.partition('. Here is')[0]}: {_join_lines(lines)}"
    return f"a hash of requirements.txt differs from the package's: {_join_lines(lines)}"


def _take_indented(lines: Sequence[str]) -> list[str]:
    """Return the indented lines at the start of *lines*, of which empty ones are left out."""
    block = []
    for line in lines:
        if line and not line.startswith((" ", "\t")):
            break
        if line.strip():
            block.append(line.strip())
        elif block:
            break
    return block


def _join_lines(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    text = ""
    for line in lines[:MOST_LINES]:
        text += (" " if text.endswith(":") else "; " if text else "") + " ".join(line.split())
    return text + more


def _read_failed_fetch(lines: Sequence[str], other_lines: Sequence[str]) -> str:
    """Return what the program said that pip ran last to fetch a package, "" if it did not fail for that."""
    last = max((index for index, line in enumerate(lines) if _RUNNING.match(line)), default=None)
    if last is None:
        return ""
    program = _RUNNING.match(lines[last])
    failed = [match for line in lines[last + 1 :] if (match := _FETCH_FAILED.fullmatch(line))]
    if not failed or program is None or failed[-1]["program"] != program["program"]:
        return ""
    sources = [match["source"] for line in (*lines[:last], *other_lines) if (match := _SOURCE.match(line))]
    words = [match["said"].strip() for line in lines[last + 1 :] if (match := _SAID.fullmatch(line))]
    words = [line for line in dict.fromkeys(words) if not line.startswith((*_EMPTY, "ERROR: Failed to build"))]
    # A fetch of what a partial clone left out starts git below git, which says the same in other words.
    words = [line for line in words if not line.startswith("ERROR: Command errored out")][:2]
    whose = f"{program['program']} {failed[-1]['verb']}" + (f" of {sources[-1]}" if sources else "")
    return f"{whose} failed" + (f": {'; '.join(words)}" if words else "")


def _read_unreached_index(lines: Sequence[str]) -> str:
    """Return why pip could not reach the index (the message of urllib3's error), "" if it could."""
    match = next((match for line in reversed(lines) if (match := _UNREACHED.match(line.strip()))), None)
    return _OBJECT.sub("", match["error"]).removesuffix("')").removesuffix('")') if match else ""


def _read_explanation(lines: Sequence[str], earlier_lines: Sequence[str] = ()) -> str:
    """Return the problem and the package below a code. Older pips name none: then the last of *earlier_lines*."""
    parts = []
    for line in lines:
        if line.startswith(("note:", "hint:")):
            break
        if line:
            parts.append(_MARKS.sub("", line))
    if len(parts) > 1 and parts[1].startswith(_NO_PACKAGE):
        packages = [match["package"] for line in earlier_lines if (match := _PACKAGE.match(line))]
        parts[1:] = packages[-1:]
    return ": ".join(text.rstrip(".:") for text in parts[:2])


def _read_build_error(lines: Sequence[str]) -> str:
    """Return the error in the output of the last build: its last line, or an error line that explanations follow."""
    ends = [index for index, line in enumerate(lines) if line.strip() == _END]
    if not ends:
        return ""
    start = max((index for index, line in enumerate(lines[: ends[-1]]) if _OUTPUT.match(line)), default=0)
    output = [line.strip() for line in lines[start : ends[-1]] if line.strip()]
    errors = [line for line in output if _BUILD_ERROR.match(line)]
    return (errors or output or [""])[-1]
