"""Pure: reads the output of a process that a fatal signal ended: the runtime's last words and Python's stack.

A runtime that aborts prints the reason first (C++, the C library, assertions, CUDA, Rust). faulthandler then writes the
stack of every thread, and last a long line with the names of all extension modules, which is never the reason.
"""

from collections.abc import Sequence

from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.train.verdict import error_frame, tail

# The last words of runtimes at the start of a line, after torch's rank tag if there is one.
_BEFORE = r"^(?:\[rank\d+\]: ?)?"
_LAST_WORDS = tuple(
    lazy(_BEFORE + words)
    for words in (
        # C++: libstdc++, libc++
        r"terminate called ",
        r"libc\+\+abi: ",
        r"pure virtual method called$",
        # glibc's heap and stack checks (malloc/malloc.c, debug/fortify_fail.c; 2.26 and older name the program)
        r"(?:double free or corruption|free\(\): |malloc\(\)|malloc_consolidate\(\): |realloc\(\): |calloc\(\): )",
        r"(?:corrupted (?:size|double-linked)|munmap_chunk\(\): |mremap_chunk\(\): |invalid fastbin|chunk_main_arena)",
        r"\*\*\* .+ \*\*\*: terminated$",
        r"\*\*\* Error in `",
        r"Fatal glibc error: ",
        # assert(3), and CUDA's on the device, which names a block and a thread
        r".*[:\]] Assertion [`'].*['`] failed\.?$",
        # glog and Abseil ("F1121 03:28:14.5 71 file.cc:7] Check failed"), TensorFlow
        r"F\d{4,8} .*\] ",
        r"\d{4}-\d\d-\d\d .*: F .*\] ",
        # others
        r"thread '.*' (?:\(\d+\) )?panicked at ",
        r"memory allocation of \d+ bytes failed$",
        r"==\d+==\s?ERROR: ",
        r"OMP: Error #",
    )
)
_ASSERTION = lazy(r".*[:\]] Assertion [`'].*['`] failed\.?$")
_FATAL = lazy(r"^Fatal Python error: (?P<why>.*)$")
# faulthandler's names of signals (Modules/faulthandler.c): they add nothing to the exit status.
_OF_A_SIGNAL = (
    "Aborted",
    "Bus error",
    "Floating point exception",
    "Floating-point exception",
    "Illegal instruction",
    "Segmentation fault",
)
_THREAD = lazy(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = lazy(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
# At most so many lines of other threads may follow a runtime's words.
NEAR_LINES = 20
WORDS_LINES = 4
LINE_CHARACTERS = 400
MATCHED_CHARACTERS = 4096
FRAMES = 2


class Crash(Record, frozen=True, kw_only=True):
    """The output of a crashed process.

    `words`: the runtime's message, () for none. `places`: the innermost Python frames of the crashed thread, or of the
    main thread if that has none, "FILE:LINE in FUNCTION", innermost first, up to the first frame of the user's code.
    `output_before`: the output before the crash. `stacks`: the frames of all threads.
    """

    words: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    output_before: bytes = b""
    stacks: str = ""


def read_crash(stderr: bytes, user_paths: Sequence[str] = ()) -> Crash | None:
    """Return the crash at the end of *stderr*, None if there is none. *user_paths*: place.user_paths_of."""
    lines = _split_lines(stderr)
    fatal = next((index for index in range(len(lines) - 1, -1, -1) if _FATAL.match(lines[index])), None)
    dumped = len(lines) if fatal is None else fatal
    start = _find_last_words(lines[:dumped])
    words = () if start is None else _shorten_words(lines[start:dumped])
    if fatal is None:
        return None if start is None else Crash(words=words, output_before=_encode_lines(lines[:start]))
    reason = lines[fatal].partition(": ")[2]
    if reason not in _OF_A_SIGNAL and not words:
        words = _shorten_words([lines[fatal]])
    lines_before = lines[: dumped if start is None else start]
    dump = [line for line in lines[fatal:] if not line.startswith("Extension modules: ")]
    return Crash(
        words=words,
        places=_find_places(dump, user_paths),
        output_before=_encode_lines(lines_before),
        stacks="\n".join(dump),
    )


def find_assertion(stderr: bytes) -> str:
    """Return the first assertion that failed on a CUDA device, "" for none. The exception does not name it."""
    lines = (line for line in _split_lines(stderr) if ": block: [" in line and _ASSERTION.match(line))
    return beginning(next(lines, ""), LINE_CHARACTERS)


def _split_lines(stderr: bytes) -> list[str]:
    return [line[:MATCHED_CHARACTERS] for line in tail.split_lines(stderr)]


def _find_last_words(lines: list[str]) -> int | None:
    """Return the index of the first line of a runtime's last words, which several threads may print in a row."""
    first = None
    for index in range(len(lines) - 1, -1, -1):
        if any(pattern.match(lines[index]) for pattern in _LAST_WORDS):
            first = index
        elif (len(lines) if first is None else first) - index > NEAR_LINES:
            break
    return first


def _shorten_words(lines: list[str]) -> tuple[str, ...]:
    """Return the first few of *lines*, and only one of assertions in a row (CUDA prints one for each thread)."""
    excerpt: list[str] = []
    for line in filter(str.strip, lines):
        if excerpt and _ASSERTION.match(line) and _ASSERTION.match(excerpt[-1]):
            continue
        excerpt.append(beginning(line, LINE_CHARACTERS))
    return tuple(excerpt[:WORDS_LINES])


def _find_places(dump: list[str], user_paths: Sequence[str]) -> tuple[str, ...]:
    """Return the frames of faulthandler's *dump* to report. It writes the main thread last."""
    threads: list[tuple[bool, list[str]]] = []
    for line in dump:
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread is not None:
            threads.append((thread["current"] == "Current thread", []))
        elif frame is not None and threads:
            threads[-1][1].append(f"{frame['file']}:{frame['line']} in {frame['function']}")
    with_frames = [thread for thread in threads if thread[1]]
    if not with_frames:
        return ()
    frames = next((frames for current, frames in with_frames if current), with_frames[-1][1])
    users = error_frame.find_user_frame(frames, user_paths)
    return tuple(frames[:FRAMES] if not users or users in frames[:FRAMES] else (*frames[:FRAMES], users))


def _encode_lines(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "replace")
