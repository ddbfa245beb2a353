"""A small process that ends what `train` started, should `train` itself be killed: SIGKILL leaves no time to.

When it wakes, `train` is dead, the kernel has killed the processes that `train` started (PR_SET_PDEATHSIG), and what
these had started is nobody's child any more. It is found by what cannot be lost then: the run's marker in its
environment, its session, or that it was seen below `train` before.
"""

import os
import select
import signal
import time

from toolkit.supervise.children import Prctl, fork_call
from toolkit.supervise.kernel import Seen, below, marked, pending, seen, table
from toolkit.supervise.signals import ENDING, FORWARDED, IGNORED, STOPPING

NAME = "toolkit-guard"  # Not "train": `killall -9 train` leaves it to do its work.
# What was started with an empty environment, in a session of its own, is known only if a look at all of `train`'s
# descendants has seen it. A look takes 1 to 10 ms; it may cost this share of a core, and is repeated after this long.
LOOK_SHARE = 0.0005
LOOK_S = 2.0


class Guardian:
    """The process, from its start to its dismissal.

    It waits on a pipe whose other end only `train` holds. As PID 1 of a container `train` needs none: the kernel ends
    the whole PID namespace with it.
    """

    def __init__(self, marker: str, *, prctl: Prctl) -> None:
        read_end, self._write_end = os.pipe()
        write_end, train = self._write_end, os.getpid()
        os.set_blocking(write_end, False)

        def watch() -> int:
            os.close(write_end)
            # SIGUSR1, too: Slurm may send a notice to every process of a step.
            for number in (*ENDING, *FORWARDED, *IGNORED, signal.SIGTSTP):
                signal.signal(number, signal.SIG_IGN)
            # Blocked and not ignored: they stay pending, where `was_sent` finds them.
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
            _take_name()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            # Descriptors of the parent (its console, its links) must not outlive it here.
            os.dup2(read_end, 3)
            os.closerange(4, 1024)
            _end_all(marker.encode(), _watch(3, train))
            return 0

        self.pid = fork_call(watch, prctl=prctl, outlives=True)
        os.close(read_end)

    def tell(self, pid: int) -> None:
        """Say that *pid* was started, in a session of its own."""
        try:
            os.write(self._write_end, pid.to_bytes(4, "little"))
        except OSError:
            pass  # It has been stopped or killed; what has the marker is found all the same.

    def wake(self) -> None:
        """Have it go on if somebody has stopped it (SIGSTOP): stopped, it would not outlive `train` to any purpose."""
        try:
            os.kill(self.pid, signal.SIGCONT)
        except OSError:
            pass  # It has ended, which `reap` tells.

    def was_sent(self) -> set[int]:
        """Return the stop signals that this process was sent. Nobody means to stop it: who sends it one sends it to
        every process of the job, as Slurm does with proctrack/linuxproc, to `train` last."""
        return pending(self.pid) & STOPPING

    def dismiss(self) -> None:
        """End it. By SIGKILL: one that somebody has stopped (SIGSTOP) would answer nothing else."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except OSError:
            pass  # Somebody killed it before us; there is nothing to dismiss.
        self.close()

    def close(self) -> None:
        """Let go of one that has ended."""
        os.close(self._write_end)


def _take_name() -> None:
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(NAME)
    except OSError:
        pass  # A name only.


def _watch(pipe: int, train: int) -> dict[int, int]:
    """Return, once *train* has ended, what it had started and what was seen below it: each process's start by pid."""
    known: dict[int, int] = {}
    rest_s = LOOK_S
    while True:
        if select.select([pipe], [], [], rest_s)[0]:
            told = os.read(pipe, 4096)
            if not told:
                return known
            for pid in (int.from_bytes(told[at : at + 4], "little") for at in range(0, len(told), 4)):
                # One that has ended already is known by its session.
                process = seen(pid)
                known[pid] = process.start if process is not None else 0
        else:
            before_s = time.process_time()
            processes = table()
            known = _alive(known, processes)
            known |= {pid: processes[pid].start for pid in below({train}, processes)}
            rest_s = max(LOOK_S, (time.process_time() - before_s) / LOOK_SHARE)


def _alive(known: dict[int, int], processes: dict[int, Seen]) -> dict[int, int]:
    """Return those of *known* that live, or whose session somebody lives in. A pid that another process has been given
    meanwhile has another start."""
    sessions = {process.session for process in processes.values()}
    return {
        pid: start
        for pid, start in known.items()
        if (processes[pid].start == start if pid in processes else pid in sessions)
    }


def _end_all(marker: bytes, known: dict[int, int]) -> None:
    # Stopped first, so that nothing forks while the list is made; again, for what had forked before.
    for _ in range(3):
        processes = table()
        ours = _alive(known, processes)
        left = marked(marker) | {p for p, process in processes.items() if p in ours or process.session in ours}
        left = (left | below(left, processes)) - {os.getpid()}
        if not left:
            return
        for pid in left:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
