"""Pure: names the place of an error: the innermost frame of the user's own code, with the library's beside it.

Nothing else chooses a frame. A frame is "FILE:LINE in FUNCTION"; frames are innermost first.
"""

from collections.abc import Sequence
from pathlib import Path

from toolkit.job.job import Job
from toolkit.patterns import lazy

# Installed packages, the standard library (also zipped, also frozen: "<frozen os>"), code without a file ("<string>"),
# and code that libraries generate (TensorFlow's AutoGraph, torch's inductor).
_LIBRARY = lazy(
    r"^<|/(?:site|dist)-packages/|/lib(?:32|64)?/(?:python|pypy)\d|/python\d+\.zip/"
    r"|/__autograph_generated_file|/torchinductor_"
)
# The script by which an installed package starts: /usr/local/bin/torchrun.
_COMMAND = lazy(r"/bin/[^/.:]+:\d")
_TOOLKIT = f"{Path(__file__).parents[2]}/"
# The part of a library's path that tells which one it is.
_BEFORE_NAME = lazy(r"^.*/(?:(?:site|dist)-packages|lib(?:32|64)?/(?:python|pypy)\d[^/]*|python\d+\.zip)/")


def user_paths_of(job: Job) -> tuple[str, ...]:
    """Return texts of which one is in the path of each file of the user's own code: its folder, with a slash at both
    ends, and its package where pip installs that."""
    if job.script is None:
        return ()
    folder = str(job.script.folder).rstrip("/")
    package = job.script.entry.partition(".")[0] if job.script.kind == "package" else ""
    return (f"{folder}/", *((f"-packages/{package}/", f"-packages/{package}.py") if package else ()))


def find_user_frame(frames: Sequence[str], user_paths: Sequence[str]) -> str:
    """Return the innermost frame of the user's own code, "" if there is none.

    Code below the job's code folder comes before code elsewhere that is no library, such as a checkout on PYTHONPATH.
    """
    theirs = [frame for frame in frames if _is_own(frame, user_paths)]
    others = (frame for frame in frames if not _is_library(frame) and not _COMMAND.search(frame))
    return next(iter(theirs), "") or next(others, "")


def describe_place(frames: Sequence[str], user_paths: Sequence[str]) -> str:
    """Return "train.py:9 in main, raised in json/decoder.py:355 in raw_decode"; "" without frames."""
    if not frames:
        return ""
    users = find_user_frame(frames, user_paths)
    if not users or users == frames[0]:
        return frames[0]
    return f"{users}, raised in {shorten_frame(frames[0], user_paths)}"


def shorten_frame(frame: str, user_paths: Sequence[str]) -> str:
    """Return *frame* with a path relative to what it belongs to: the code folder, the folder of packages."""
    if frame.startswith(_TOOLKIT):
        return f"toolkit/{frame.removeprefix(_TOOLKIT)}"
    if _is_library(frame):
        return _BEFORE_NAME.sub("", frame)
    return next((frame.removeprefix(folder) for folder in user_paths if frame.startswith(folder)), frame)


def _is_own(frame: str, user_paths: Sequence[str]) -> bool:
    folders, packages = (
        [text for text in user_paths if text.startswith("/")],
        [text for text in user_paths if text[:1] == "-"],
    )
    if any(text in frame for text in packages):
        return True
    return not _is_library(frame) and (not frame.startswith("/") or any(map(frame.startswith, folders)))


def _is_library(frame: str) -> bool:
    return bool(_LIBRARY.search(frame)) or frame.startswith(_TOOLKIT)
