"""What every rank of the fault matrix runs: meet the others, take steps with them, and break as told, where told.

Arguments, from the job's hyperparameters: --fault NAME, --at HOST (whose first rank breaks), --meet FOLDER (where ranks
leave word), --ranks N (in the job), --steps N (then it ends with 0), --together torch | none.
In FOLDER: `here-HOST-RANK` when a rank has begun, `fault` (monotonic ns) when it breaks, `saved-HOST-RANK` when saved.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STEP_S = 0.02
SAVING_S = 2.0
TEARDOWN_S = 0.6


class Rank:
    """One rank: what it was given, and its way to step with the others."""

    def __init__(self, words: dict[str, str]) -> None:
        self.host = os.environ["SM_CURRENT_HOST"]
        self.number = os.environ.get("RANK", "0")
        self.meet = Path(words["--meet"])
        self.fault = words["--fault"]
        self.ranks = int(words["--ranks"])
        self.steps = int(words["--steps"])
        self.breaks = words["--at"] == self.host and os.environ.get("LOCAL_RANK", "0") == "0"
        self.together = words["--together"] == "torch"
        self.told = False
        self.leave: Callable[[], None] = lambda: None

    def join(self) -> None:
        """Be there; with torch, in one process group."""
        if self.fault in ("saves", "ignores"):
            signal.signal(signal.SIGTERM, self._on_term if self.fault == "saves" else signal.SIG_IGN)
        if self.together:
            import torch.distributed as dist

            dist.init_process_group("gloo")
            self.leave = dist.destroy_process_group
        (self.meet / f"here-{self.host}-{self.number}").touch()

    def step(self) -> bool:
        """Take a step; True if the ranks are to stop, and with torch all at the same step."""
        time.sleep(STEP_S)
        if not self.together:
            return self.told
        import torch
        import torch.distributed as dist

        told = torch.tensor([float(self.told)])
        dist.all_reduce(told)
        return bool(told.item())

    @property
    def all_here(self) -> bool:
        return len(list(self.meet.glob("here-*"))) == self.ranks

    def word(self, name: str) -> None:
        """Leave a word with the time in the meeting folder."""
        draft = self.meet / f".{name}-{os.getpid()}"
        draft.write_text(str(time.monotonic_ns()))
        draft.rename(self.meet / name)

    def _on_term(self, _number: int, _frame: object) -> None:
        self.told = True


def raises(rank: Rank) -> None:
    raise RuntimeError(f"boom on {rank.host}")


def raises_slowly(rank: Rank) -> None:
    """Raise; the way out leaves the group first, so that the others fail before this process has ended."""
    atexit.register(time.sleep, TEARDOWN_S)
    atexit.register(rank.leave)
    raise RuntimeError(f"boom on {rank.host}")


def leaves_a_child(rank: Rank) -> None:
    """Raise, and leave a process in a session of its own that holds none of our pipes and ignores SIGTERM."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    rank.word("fault")  # Not before it ignores the signal.
    raise RuntimeError(f"boom on {rank.host}")


def eats_memory(_rank: Rank) -> None:
    kept = []
    while True:
        kept.append(b"x" * (8 << 20))


def _ends(code: int) -> Callable[[Rank], None]:
    return lambda _rank: sys.exit(code)


def _kills_itself(number: int) -> Callable[[Rank], None]:
    return lambda _rank: os.kill(os.getpid(), number)


BREAKS: dict[str, Callable[[Rank], None]] = {
    "raises": raises,
    "raises-slowly": raises_slowly,
    "leaves-a-child": leaves_a_child,
    "eats-memory": eats_memory,
    "hangs": lambda _rank: time.sleep(600),
    "exits-3": _ends(3),
    "exits-143": _ends(143),
    "sigkill": _kills_itself(signal.SIGKILL),
    "sigsegv": _kills_itself(signal.SIGSEGV),
    "sigstop": _kills_itself(signal.SIGSTOP),
}
# Without collectives nothing makes the others wait for a rank that stands still; here they wait by themselves.
STANDS_STILL = ("hangs", "sigstop")


def main(words: dict[str, str]) -> None:
    rank = Rank(words)
    rank.join()
    broken = False
    for _ in range(rank.steps):
        if rank.step():
            time.sleep(SAVING_S)
            rank.word(f"saved-{rank.host}-{rank.number}")
            break
        if rank.fault in BREAKS and not broken and rank.all_here:
            broken = True
            if rank.breaks:
                rank.word("fault")
                BREAKS[rank.fault](rank)
            elif rank.fault in STANDS_STILL and not rank.together:
                time.sleep(600)
    rank.leave()


if __name__ == "__main__":
    main(dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True)))
