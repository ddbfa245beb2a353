"""Tells from a stack whether a rank waits for other ranks.

Only Python frames are seen. What waits in C or C++ without a frame of its own (torch's Work.wait, a store's get,
mpi4py, `.item()`) shows as the user's line that calls it. Such a line, and what waits for a device that may itself be
in a collective, is unclear: the rank is never the one that is named.
"""

import re

from toolkit.job.stuck import Kind
from toolkit.records import Record

# faulthandler's and py-spy's; faulthandler ends with "..." what it cut at 100 frames or threads.
WRITTEN = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
SPIED = re.compile(r"^ +(?P<function>.+) \((?P<file>.*):(?P<line>\d+)\)$")
CUT = "..."
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<|/toolkit/(dataparallel|xla|compat|hook)/")

# By the part of a path with which each begins, the longest that fits decides.
WAITS: dict[str, Kind] = {
    "torch/distributed/": "waits",
    "torch/distributed/checkpoint/filesystem.py": "works",
    "torch/distributed/checkpoint/_fsspec_filesystem.py": "works",
    "torch/distributed/checkpoint/staging.py": "works",
    "torch/nn/parallel/": "waits",
    "torch/autograd/": "waits",  # DDP's and FSDP's reductions are waited for in backward.
    "torch/futures/": "waits",
    "torch/cuda/__init__.py": "unclear",
    "torch/cuda/streams.py": "unclear",
    "torch/xpu/": "unclear",
    "torch/utils/data/": "works",  # Its workers are no ranks.
    "torch/nn/modules/": "works",
    "torch/serialization.py": "works",
    "torch/hub.py": "works",
    "toolkit/dataparallel/": "waits",
    "toolkit/dataparallel/timeline.py": "works",
    "toolkit/xla/": "unclear",
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
# Frames of these lie between a wait and who called it.
BETWEEN = ("torch/",)
# Calls without a frame of their own: of torch's works, futures, stores and streams, of mpi4py, and of what copies a
# result from a device.
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


def parsed(text: str) -> list[Frame]:
    """Return the main thread's frames in what faulthandler or py-spy wrote, the innermost first.

    faulthandler writes the main thread last; py-spy names it "MainThread". Empty without one, as where faulthandler
    stopped at 100 threads, before the main one.
    """
    lines = text.splitlines()
    spied = next((at for at, line in enumerate(lines) if "MainThread" in line and line.startswith("Thread ")), None)
    heads = [at for at, line in enumerate(lines) if line.endswith("(most recent call first):")]
    if spied is None and (not heads or (lines[-1] == CUT)):
        return []
    start, pattern = (heads[-1], WRITTEN) if spied is None else (spied, SPIED)
    found = []
    for line in lines[start + 1 :]:
        if (match := pattern.match(line)) is None:
            break
        found.append(Frame(file=match["file"], line=int(match["line"]), function=match["function"]))
    return found


def kind(frames: list[Frame], source: str) -> Kind:
    """Return what a rank with these *frames* does; *source*: the text of the innermost frame's line, "" if not known.

    The innermost frame that a library known here owns decides. The standard library's are passed over (locks, polls),
    the user's are not: what hangs in a model's own code works, though DistributedDataParallel called it.
    """
    for number, frame in enumerate(frames):
        if frame.is_users:
            return "unclear" if number == 0 and CALLS.search(source) else "works"
        if (known := _known(frame.file)) is not None:
            return known
        if _package(frame.file) and not _package(frame.file).startswith(BETWEEN):
            return "works"
    return "works" if frames else "unclear"


def users(frames: list[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, else the innermost one; None without any."""
    return next((frame for frame in frames if frame.is_users), frames[0] if frames else None)


def _known(file: str) -> Kind | None:
    fits = [start for start in WAITS if f"/{start}" in file]
    return WAITS[max(fits, key=len)] if fits else None


def _package(file: str) -> str:
    """Return the path within site-packages, "" of a file that is not in it."""
    return next((file.partition(each)[2] for each in ("/site-packages/", "/dist-packages/") if each in file), "")
