"""Determines from a stack whether a rank waits for other ranks.

A stack has only Python frames. A wait in C or C++ without a Python frame (torch's Work.wait, a store's get, mpi4py,
`.item()`) appears as the user's line that calls it. Such a line is "unclear", and so is a wait for a device, which may
itself be in a collective. A rank whose state is unclear is never named as the culprit.
"""

import re

from toolkit.job.stuck import Activity
from toolkit.records import Record

# faulthandler's form and py-spy's. faulthandler writes "..." where it stopped, at 100 frames or threads.
WRITTEN = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
SPIED = re.compile(r"^ +(?P<function>.+) \((?P<file>.*):(?P<line>\d+)\)$")
SPIED_PROCESS = re.compile(r"Process (\d+):")
CUT = "..."
LIBRARY = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<"
    r"|/toolkit/rank/"
)

# By the beginning of a file's path; the longest match decides.
WAITS: dict[str, Activity] = {
    "torch/distributed/": "waits",
    "torch/distributed/checkpoint/filesystem.py": "works",
    "torch/distributed/checkpoint/_fsspec_filesystem.py": "works",
    "torch/distributed/checkpoint/staging.py": "works",
    "torch/nn/parallel/": "waits",
    "torch/autograd/": "waits",  # backward waits for the reductions of DDP and FSDP.
    "torch/futures/": "waits",
    "torch/cuda/__init__.py": "unclear",
    "torch/cuda/streams.py": "unclear",
    "torch/xpu/": "unclear",
    "torch/utils/data/": "works",  # DataLoader workers are not ranks.
    "torch/nn/modules/": "works",
    "torch/serialization.py": "works",
    "torch/hub.py": "works",
    "toolkit/rank/dataparallel/": "waits",
    "toolkit/rank/dataparallel/timeline.py": "works",
    "toolkit/rank/modelparallel/": "unclear",  # A step runs the user's function in threads of its own.
    "toolkit/rank/modelparallel/messenger.py": "waits",
    "toolkit/rank/xla/": "unclear",
    "torch_xla/": "unclear",
    "horovod/": "waits",
    "mpi4py/": "waits",
    "deepspeed/comm/": "waits",
    "xgboost/collective.py": "waits",
    "tensorflow/python/eager/": "unclear",
    "tensorflow/python/distribute/": "unclear",
    "jax/experimental/multihost_utils.py": "waits",
    "jax/": "unclear",
    "jaxlib/": "unclear",
}
# Frames of these packages stand between a wait and its caller.
BETWEEN = ("torch/",)
# Functions of decorators.
PASSING_ON = ("wrapper", "inner", "decorate_context")
# Calls without a Python frame: torch's works, futures, stores and streams, mpi4py, and copies of a result from a
# device.
CALLS = re.compile(
    r"\.(wait|Wait\w*|waitall|get|synchronize|item|cpu|tolist|numpy|result|block_until_ready|barrier|Barrier"
    r"|[Aa]ll(reduce|gather|toall)\w*|[Bb]cast|[Rr]educe\w*|[Gg]ather\w*|[Ss]catter\w*|[Rr]ecv|[Ss]end\w*|[Pp]robe)\("
)


class Frame(Record, frozen=True, kw_only=True):
    """One Python frame."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        return LIBRARY.search(self.file) is None


def parse_frames(text: str) -> list[Frame]:
    """Return the main thread's frames, the innermost first, from the text of faulthandler or py-spy.

    faulthandler writes the main thread last. py-spy names it "MainThread" if the script has imported threading, else it
    has the number of the process. The list is empty if the text has no main thread: faulthandler may have stopped at
    100 threads, before the main one.
    """
    lines = text.splitlines()
    process = SPIED_PROCESS.match(text)
    main = f"Thread {process[1]} (" if process else "Thread none"
    spied = next(
        (
            index
            for index, line in enumerate(lines)
            if line.startswith(main) or ("MainThread" in line and line.startswith("Thread "))
        ),
        None,
    )
    heads = [index for index, line in enumerate(lines) if line.endswith("(most recent call first):")]
    if spied is None and (not heads or (lines[-1] == CUT)):
        return []
    start, pattern = (heads[-1], WRITTEN) if spied is None else (spied, SPIED)
    frames = []
    for line in lines[start + 1 :]:
        if (match := pattern.match(line)) is None:
            break
        frames.append(Frame(file=match["file"], line=int(match["line"]), function=match["function"]))
    return frames


def kind(frames: list[Frame], source: str) -> Activity:
    """Return the state of a rank with these *frames*; *source*: the text of the innermost frame's line, "" if unknown.

    The innermost frame that belongs to a library in the tables above decides. Frames of the standard library (locks,
    polls) are skipped, the user's are not: a rank in the model's own code "works", even if DistributedDataParallel
    called that code.
    """
    for number, frame in enumerate(frames):
        if frame.is_users:
            return "unclear" if number == 0 and CALLS.search(source) else "works"
        if (library_kind := _known(frame.file)) is not None:
            return library_kind
        if _package(frame.file) and not _package(frame.file).startswith(BETWEEN):
            return "works"
    return "works" if frames else "unclear"


def users(frames: list[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, else the innermost frame; None if there are no frames."""
    return next((frame for frame in frames if frame.is_users), frames[0] if frames else None)


def called(frames: list[Frame]) -> str:
    """Return the library's function that the user's own code calls, as "all_reduce"; "" if it cannot be told.

    Functions that only pass a call on, by their names, are not it.
    """
    user = next((number for number, frame in enumerate(frames) if frame.is_users), 0)
    names = (frame.function.rpartition(".")[2] for frame in reversed(frames[:user]))
    return next((name for name in names if not name.startswith("_") and name not in PASSING_ON), "")


def _known(file: str) -> Activity | None:
    fits = [start for start in WAITS if f"/{start}" in file]
    return WAITS[max(fits, key=len)] if fits else None


def _package(file: str) -> str:
    """Return the path within site-packages, "" for a file outside it."""
    return next((file.partition(folder)[2] for folder in ("/site-packages/", "/dist-packages/") if folder in file), "")
