"""The places at which ranks were while a step had not begun its forward pass: output/monitor/pauses.json.

Each process that trains writes its own samples (rank/profiler/pauses.py) into the status folder as a RankPauses; the
monitor keeps the newest of each rank.
"""

from collections.abc import Mapping
from pathlib import Path

from toolkit import files
from toolkit.errors import ContractError
from toolkit.records import Record, decode, encode

NAME = "pauses.json"
# What the kernel's functions in which a thread sleeps have in their names, and what the thread waits for.
WAITS = (
    (("flock", "locks_lock", "posix_lock"), "a file lock"),
    (("futex",), "another thread"),
    (("nanosleep",), "a sleep"),
    (("tcp", "inet", "sk_", "skb", "unix_", "sock"), "a socket"),
    (("wait_woken",), "a socket"),
    (("poll", "select", "ep_", "epoll"), "a socket"),
    (("pipe",), "a pipe"),
    (
        ("folio", "io_schedule", "wait_on_bit", "bit_wait", "blk", "nfs", "fuse", "ext4", "xfs", "jbd2", "iomap"),
        "a disk",
    ),
    (("do_wait", "wait4"), "a child process"),
)


class PauseStack(Record, frozen=True, kw_only=True):
    """A stack that was seen in pauses."""

    count: int  # How often.
    frames: tuple[str, ...] = ()  # The innermost first: "FILE:LINE in FUNCTION".
    call: str = ""  # What the script calls there: "fcntl.flock"; empty: not known.
    place: str = ""  # Where the script is: "train.py:41".
    wait: str = ""  # The kernel's function in which the thread sleeps; empty: it computes, or is not known.


class RankPauses(Record, frozen=True, kw_only=True):
    """The samples that were taken in the pauses of one process."""

    samples: int = 0  # All that were taken.
    data_samples: int = 0  # Those of them within a generator of the script.
    late_saving_s: float = 0.0  # Saving after the last step.
    late_evaluation_s: float = 0.0  # Evaluation after it.
    stacks: tuple[PauseStack, ...] = ()  # The most frequent first.


class PausePlace(Record, frozen=True, kw_only=True):
    """The place at which a script was most often in its pauses."""

    share: float  # Percent of the samples.
    where: str  # "fcntl.flock (train.py:41)", or only the place.
    wait: str  # What it waits for there: "a file lock"; empty: it computes, or is not known.


def read_rank(path: Path) -> RankPauses | None:
    """Return what a process wrote to *path*, None if that is damaged or not there."""
    try:
        return decode(files.read(path), RankPauses, str(path))
    except (OSError, ContractError):
        return None


def write(folder: Path, ranks: Mapping[int, RankPauses]) -> None:
    """Write the pauses of *ranks* into *folder*.

    Raises:
        OSError: they cannot be written.
    """
    files.replace(folder / NAME, encode({str(rank): pauses for rank, pauses in ranks.items()}) + b"\n")


def read(folder: Path) -> dict[int, RankPauses]:
    """Return the pauses of each rank in *folder*, none where nothing readable is there."""
    try:
        return decode(files.read(folder / NAME), dict[int, RankPauses], NAME)
    except (OSError, ContractError):
        return {}


def describe_wait(stack: PauseStack) -> str:
    """Return what *stack* waits for, in words; empty: it computes, or is not known."""
    return next((words for parts, words in WAITS if any(part in stack.wait for part in parts)), "")


def find_place(pauses: RankPauses) -> PausePlace | None:
    """Return where most samples of the script's pauses were, None if that is not known."""
    places: dict[tuple[str, str], int] = {}
    waits: dict[tuple[str, str], dict[str, int]] = {}
    for stack in pauses.stacks:
        if stack.place:
            key = stack.call, stack.place
            places[key] = places.get(key, 0) + stack.count
            of_place = waits.setdefault(key, {})
            words = describe_wait(stack)
            of_place[words] = of_place.get(words, 0) + stack.count
    if not places:
        return None
    (call, place), count = max(places.items(), key=lambda item: item[1])
    of_place = waits[call, place]
    return PausePlace(
        share=100 * count / max(pauses.samples, count),
        where=f"{call} ({place})" if call else place,
        wait=max(of_place, key=lambda word: of_place[word]),
    )
