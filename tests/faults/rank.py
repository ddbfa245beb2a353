"""The program of every rank of the fault matrix: meet the others, take steps with them, and break as told, where told.

Arguments, from the job's hyperparameters: --fault NAME, --at HOST (whose first rank breaks), --meet FOLDER (where ranks
leave word), --ranks N (in the job), --steps N (then it ends with 0), --together none | torch | smddp | smp | mpi |
xla | jax.
In FOLDER: `here-HOST-RANK` when a rank has begun, `fault` (monotonic ns) when it breaks, `saved-HOST-RANK` when saved.
`told`: from the harness, for raises-when-told.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_S = 0.02
SAVING_S = 2.0
TEARDOWN_S = 0.6


class Alone:
    """Ranks that know nothing of each other."""

    def join(self) -> None:
        """Meet the others."""

    def any(self, flag: bool) -> bool:
        """Return whether any rank was told, to all at the same step."""
        return flag

    def leave(self) -> None:
        """Part from the others; whoever still waits for this rank fails."""

    on_call: Callable[[], None]


class Torch(Alone):
    """Ranks in one process group over gloo."""

    backend = "gloo"

    def join(self) -> None:
        import torch.distributed as dist

        dist.init_process_group(self.backend)

    def any(self, flag: bool) -> bool:
        import torch
        import torch.distributed as dist

        count = torch.tensor([float(flag)])
        dist.all_reduce(count)
        return bool(count.item())

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


class Smddp(Torch):
    """The same over the open backend, by AWS's name for it."""

    backend = "smddp"

    def join(self) -> None:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

        super().join()


class Smp(Alone):
    """Ranks of the model parallel library: they step through a model of two partitions."""

    def join(self) -> None:
        import smdistributed.modelparallel.torch as smp
        import torch

        owner = self

        class Part(torch.nn.Linear):
            def forward(self, x: Any) -> Any:
                owner.on_call()
                return super().forward(x)

        @smp.step  # type: ignore[untyped-decorator]
        def step(model: Any, x: Any) -> None:
            model.backward(model(x).square().mean())

        smp.init()
        self._smp: Any = smp
        with smp.partition(0):
            first = Part(8, 8)
        with smp.partition(1):
            last = Part(8, 8)
        self.on_call: Callable[[], None] = lambda: None
        self._step = step
        self._model = smp.DistributedModel(torch.nn.Sequential(first, last))
        self._batch = torch.ones(4, 8)
        self.any(False)  # The first one partitions the model.

    def any(self, flag: bool) -> bool:
        self._step(self._model, self._batch)
        return any(self._smp.allgather(flag))

    def leave(self) -> None:
        self._smp.shutdown()


class Mpi(Alone):
    """Ranks of one MPI world. They look for the others' answer from time to time: inside MPI they would spin for it,
    which nobody can tell from work (docs/hangs.md)."""

    def join(self) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI

    def any(self, flag: bool) -> bool:
        sent, all_ = bytearray([flag]), bytearray(1)
        request = self._mpi.COMM_WORLD.Iallreduce([sent, self._mpi.BYTE], [all_, self._mpi.BYTE], op=self._mpi.BOR)
        rest_s = 0.0001
        while not request.Test():
            time.sleep(rest_s)
            rest_s = min(2 * rest_s, STEP_S)
        return bool(all_[0])


class Xla(Alone):
    """Ranks of torch_xla on CPU."""

    def join(self) -> None:
        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm

        self._torch: Any = torch
        self._xm: Any = xm
        self._device = torch_xla.device()
        self.any(False)  # The first one compiles.

    def any(self, flag: bool) -> bool:
        count = self._torch.tensor([float(flag)]).to(self._device)
        self._xm.all_reduce("sum", [count])
        return bool(count.item())


class Jax(Alone):
    """Ranks of JAX on CPU."""

    def join(self) -> None:
        import jax
        from jax.experimental.multihost_utils import process_allgather

        self._jax: Any = jax
        self._gather: Any = process_allgather
        jax.distributed.initialize()
        self.any(False)  # The first one compiles.

    def any(self, flag: bool) -> bool:
        import numpy as np

        return bool(self._gather(np.array([flag])).any())

    def leave(self) -> None:
        self._jax.distributed.shutdown()


TOGETHER = {"none": Alone, "torch": Torch, "smddp": Smddp, "smp": Smp, "mpi": Mpi, "xla": Xla, "jax": Jax}


class Rank:
    """One rank: what it was given, and its way to step with the others."""

    def __init__(self, words: dict[str, str]) -> None:
        self.host = os.environ["SM_CURRENT_HOST"]
        self.number = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK", "0")
        self.meet = Path(words["--meet"])
        self.fault = words["--fault"]
        self.ranks = int(words["--ranks"])
        self.steps = int(words["--steps"])
        local = os.environ.get("LOCAL_RANK") or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        self.breaks = words["--at"] == self.host and local == "0"
        self.alone = words["--together"] == "none"
        self.others = TOGETHER[words["--together"]]()
        self.told = False

    def join(self) -> None:
        """Be there, with the others."""
        if self.fault in ("saves", "ignores"):
            signal.signal(signal.SIGTERM, self._on_term if self.fault == "saves" else signal.SIG_IGN)
        self.others.join()
        (self.meet / f"here-{self.host}-{self.number}").touch()

    def step(self) -> bool:
        """Take a step; True if the ranks are to stop, and those that step together all at the same one."""
        time.sleep(STEP_S)
        return self.others.any(self.told)

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


def raises_when_told(rank: Rank) -> None:
    """Raise once the harness says that another host is silent."""
    while not (rank.meet / "told").exists():
        time.sleep(0.01)
    raises(rank)


def raises_slowly(rank: Rank) -> None:
    """Raise; the way out leaves the group first, so that the others fail before this process has ended."""
    atexit.register(time.sleep, TEARDOWN_S)
    atexit.register(rank.others.leave)
    raise RuntimeError(f"boom on {rank.host}")


def raises_at_length(rank: Rank) -> None:
    """Raise with a traceback and a message of many packets."""
    raise RuntimeError(f"boom on {rank.host}" + "\n and more" * 3000)


def clock_ahead(rank: Rank) -> None:
    """Let this host's wall clock (tests/clocks.py) go an hour ahead, and raise slowly."""
    Path(os.environ["CLOCK_STEP_FILE"]).write_text("3600")
    raises_slowly(rank)


def clock_back(rank: Rank) -> None:
    """Raise; on the way out the wall clock goes back by an hour, and only then do the others fail."""
    atexit.register(time.sleep, TEARDOWN_S)
    atexit.register(rank.others.leave)
    atexit.register(Path(os.environ["CLOCK_STEP_FILE"]).write_text, "-3600")
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
    blocks = []
    while True:
        blocks.append(b"x" * (8 << 20))


def fewer_steps(rank: Rank) -> None:
    """Come to the script's end, as a rank does whose data ended first."""
    rank.others.leave()
    sys.exit(0)


def other_size(_rank: Rank) -> None:
    """Come to the collective with less room than the others send: gloo ends this process."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(1, dtype=torch.uint8))


def in_step(end: Callable[[Rank], None]) -> Callable[[Rank], None]:
    """Return a break that happens later: in this rank's own part of the model, while a step runs."""

    def later(rank: Rank) -> None:
        def breaks() -> None:
            rank.word("fault")
            end(rank)

        rank.others.on_call = breaks

    return later


def _ends(code: int) -> Callable[[Rank], None]:
    return lambda _rank: sys.exit(code)


def _kills_itself(number: int) -> Callable[[Rank], None]:
    return lambda _rank: os.kill(os.getpid(), number)


BREAKS: dict[str, Callable[[Rank], None]] = {
    "raises": raises,
    "raises-in-step": in_step(raises),
    "raises-when-told": raises_when_told,
    "raises-slowly": raises_slowly,
    "raises-at-length": raises_at_length,
    "clock-ahead": clock_ahead,
    "clock-back": clock_back,
    "leaves-a-child": leaves_a_child,
    "eats-memory": eats_memory,
    "hangs": lambda _rank: time.sleep(600),
    "exits-3": _ends(3),
    "exits-143": _ends(143),
    "ends-early": lambda _rank: os._exit(0),
    "fewer-steps": fewer_steps,
    "other-size": other_size,
    "sigkill": _kills_itself(signal.SIGKILL),
    "sigkill-in-step": in_step(_kills_itself(signal.SIGKILL)),
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
            elif rank.fault in STANDS_STILL and rank.alone:
                time.sleep(600)
    rank.others.leave()


if __name__ == "__main__":
    main(dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True)))
