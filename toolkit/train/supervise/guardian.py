"""A small process that kills what is left of the job if `train` itself is killed: SIGKILL gives `train` no time to.

When the guardian acts, `train` is dead, and the kernel has killed the processes that `train` started
(PR_SET_PDEATHSIG). Their descendants have lost their parents. The guardian finds them by the run's marker in their
environment, by their session, or because it has seen them below `train` before.
"""

import os
import select
import signal
import time

from toolkit.train.supervise.children import Prctl, fork_call
from toolkit.train.supervise.kernel import (
    ProcessStat,
    descendants_of,
    find_marked,
    pending_signals,
    read_process,
    read_processes,
)
from toolkit.train.supervise.signals import ENDING, FORWARDED, IGNORED, STOPPING, set_mask

NAME = "toolkit-guard"  # Not "train", so that `killall -9 train` does not kill it.
# A process with an empty environment, in a session of its own, can be found only if a scan of `train`'s descendants has
# seen it before. A scan takes 1 to 10 ms. It may cost this share of a core, and is repeated no sooner than this.
LOOK_SHARE = 0.0005
LOOK_S = 2.0


class Guardian:
    """The guardian process, as `train` holds it.

    It waits on a pipe whose other end only `train` holds. If `train` is PID 1 of a container it needs no guardian: the
    kernel kills the whole PID namespace with it.
    """

    def __init__(self, marker: str, *, prctl: Prctl) -> None:
        read_end, self._write_end = os.pipe()
        write_end, train = self._write_end, os.getpid()
        os.set_blocking(write_end, False)

        def watch() -> int:
            os.close(write_end)
            # SIGUSR1 as well: Slurm may send a notice to every process of a step.
            for number in (*ENDING, *FORWARDED, *IGNORED, signal.SIGTSTP):
                signal.signal(number, signal.SIG_IGN)
            # Blocked rather than ignored, so that they stay pending and `was_sent` finds them.
            for number in STOPPING:
                signal.signal(number, signal.SIG_DFL)
            set_mask(STOPPING)
            _take_name()
            _leave_streams()
            # The parent's descriptors (its console, its links) must close when the parent ends.
            os.dup2(read_end, 3)
            os.closerange(4, 1024)
            _end_all(marker.encode(), _watch(3, train))
            return 0

        self.pid = fork_call(watch, prctl=prctl, outlives=True)
        os.close(read_end)

    def note_process(self, pid: int) -> None:
        """Report that *pid* was started, in a session of its own."""
        try:
            os.write(self._write_end, pid.to_bytes(4, "little"))
        except OSError:
            pass  # It was stopped or killed; later it, or its successor, finds *pid* by the marker.

    def wake(self) -> None:
        """Continue it if it was stopped (SIGSTOP): a stopped guardian could not do its work."""
        try:
            os.kill(self.pid, signal.SIGCONT)
        except OSError:
            pass  # It has ended; `reap` reports that.

    def was_sent(self) -> set[int]:
        """Return the stop signals that this process was sent. Nobody has a reason to signal it alone: its sender
        signals every process of the job, `train` last, as Slurm does with proctrack/linuxproc."""
        return pending_signals(self.pid) & STOPPING

    def dismiss(self) -> None:
        """End it, by SIGKILL: a stopped process (SIGSTOP) reacts to no other signal."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except OSError:
            pass  # It was killed already.
        self.close()

    def close(self) -> None:
        """Close the pipe to a guardian that has ended."""
        os.close(self._write_end)


def _leave_streams() -> None:
    try:
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:
        os.closerange(0, 3)  # An image without /dev/null.
        return
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _take_name() -> None:
    try:
        with open("/proc/self/comm", "w") as comm:
            comm.write(NAME)
    except OSError:
        pass  # The name is only for people.


def _watch(pipe: int, train: int) -> dict[int, int]:
    """Wait until *train* has ended; return the start times, by pid, of what it started and what was seen below it."""
    started: dict[int, int] = {}
    timeout_s = LOOK_S
    while True:
        if select.select([pipe], [], [], timeout_s)[0]:
            numbers = os.read(pipe, 4096)
            if not numbers:
                return started
            for pid in (int.from_bytes(numbers[offset : offset + 4], "little") for offset in range(0, len(numbers), 4)):
                # If it has ended already, its session identifies what it left.
                process = read_process(pid)
                started[pid] = process.start if process is not None else 0
        else:
            before_s = time.process_time()
            processes = read_processes()
            started = _alive(started, processes)
            started |= {pid: processes[pid].start for pid in descendants_of({train}, processes)}
            timeout_s = max(LOOK_S, (time.process_time() - before_s) / LOOK_SHARE)


def _alive(started: dict[int, int], processes: dict[int, ProcessStat]) -> dict[int, int]:
    """Return those of *started* that live, or in whose session a process lives. A reused pid has another start."""
    sessions = {process.session for process in processes.values()}
    return {
        pid: start
        for pid, start in started.items()
        if (processes[pid].start == start if pid in processes else pid in sessions)
    }


def _end_all(marker: bytes, started: dict[int, int]) -> None:
    # All are stopped first, so that none forks while the list is made, and listed again for those forked before that.
    for _ in range(3):
        processes = read_processes()
        living = _alive(started, processes)
        left = find_marked(marker) | {p for p, process in processes.items() if p in living or process.session in living}
        left = (left | descendants_of(left, processes)) - {os.getpid()}
        if not left:
            return
        for pid in left:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
