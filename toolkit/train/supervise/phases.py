"""Runs a phase under a supervisor: waits for its needs and for the other hosts, then for its processes."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from toolkit.folders import as_absent, exists
from toolkit.job.outcome import SIGNALLING_S, PhaseEnd
from toolkit.job.plan import Locked, Need, Phase
from toolkit.own_module import own_module
from toolkit.train.supervise import children, limits, waiting
from toolkit.train.supervise.phase_run import PhaseRun
from toolkit.train.supervise.supervisor import Supervisor

Start = Callable[[Phase], PhaseEnd]


def run_phase(
    supervisor: Supervisor, phase: Phase, around: Callable[[Start], PhaseEnd | None] | None = None
) -> PhaseEnd | None:
    """Wait for the phase's needs, run its processes to their end, and return what was observed (None: skipped).

    *around* is called once the needs are met, and gets the function that runs a phase's processes: it may do something
    before and after, run a changed phase, or return None without a run.

    Raises:
        UserError: its program cannot be started.
        PlatformError: this host has run out of descriptors, processes or memory.
    """
    try:
        return _run(supervisor, phase, around)
    except OSError as error:
        limit = limits.exhausted(error)
        if limit is None:
            raise
        raise limit from error


def _run(supervisor: Supervisor, phase: Phase, around: Callable[[Start], PhaseEnd | None] | None) -> PhaseEnd | None:
    with _locks(phase.needs, supervisor.log.warning) as locks:
        missing = _Waiting(supervisor, locks).run(phase.needs)
        if missing and not supervisor.machine.job.ends:
            return _not_started(supervisor, phase, missing)
        if not supervisor.machine.job.ends and phase.skip_if is not None and exists(phase.skip_if, as_absent):
            return None
        if not supervisor.machine.job.ends and phase.together and supervisor.link is not None:
            supervisor.link.tell_ready()
            with supervisor.liveness.doing("waiting"):
                supervisor.attend(lambda: supervisor.machine.job.may_start or supervisor.machine.job.ends)
        start = partial(_start, supervisor)
        return start(phase) if around is None else around(start)


def _start(supervisor: Supervisor, phase: Phase) -> PhaseEnd:
    if supervisor.machine.job.ends:
        return _not_started(supervisor, phase, ())
    return _with_late_stop(supervisor, PhaseRun(supervisor, phase).run())


def _with_late_stop(supervisor: Supervisor, ended: PhaseEnd) -> PhaseEnd:
    """Return *ended* with the stop signal that the script may have got before `train`.

    A platform that signals each process of a job, one after the other, may reach `train` last, after the script
    has ended. The guardian has then been signalled as well, so wait for `train`'s own signal.
    """
    sent = supervisor.guardian.was_sent() if supervisor.guardian is not None else set()
    if not sent:
        return ended
    ends_s = time.monotonic() + SIGNALLING_S
    supervisor.attend(lambda: supervisor.stopped_by is not None or time.monotonic() >= ends_s)
    if supervisor.stopped_by not in sent:
        return ended
    at_ns = ended.stopped_at_ns or time.monotonic_ns()
    return msgspec.structs.replace(ended, stopped_by=supervisor.stopped_by, stopped_at_ns=at_ns, signalled_each=True)


def _not_started(supervisor: Supervisor, phase: Phase, missing: tuple[str, ...]) -> PhaseEnd:
    job = supervisor.machine.job
    return PhaseEnd(
        name=phase.name,
        failure_kind=phase.failure,
        command=phase.main.argv,
        exits=(),
        main=phase.main.name,
        stopped_by=supervisor.stopped_by,
        stopped_at_ns=job.stopped_at_ns,
        missing=missing,
        peer_failed=supervisor.machine.job.peer_failed
        or (supervisor.machine.job.job_ended and supervisor.machine.job.stop is None),
    )


class _Waiting:
    """Waits for needs in a process of its own, while signals and the console are still served."""

    def __init__(self, supervisor: Supervisor, locks: dict[str, int]) -> None:
        self._supervisor = supervisor
        self._locks = locks
        self._missing: tuple[str, ...] = ()

    def run(self, needs: tuple[Need, ...]) -> tuple[str, ...]:
        """Return the needs that were not met at the deadline, () if all are met or a stop came."""
        needs = tuple(n for n in needs if not (isinstance(n, Locked) and self._is_free(str(n.path))))
        self._supervisor.notice()
        if not needs or self._supervisor.machine.job.ends:
            return ()
        read_end, write_end = os.pipe()
        program = own_module(sys.executable, waiting.__name__)
        pid = children.fork_call(
            lambda: waiting.wait_apart(needs, self._locks, write_end, program), prctl=self._supervisor.prctl
        )
        os.close(write_end)
        with self._supervisor.liveness.doing("waiting"), os.fdopen(read_end, "rb", buffering=0) as tells:
            os.set_blocking(read_end, False)
            return self._watch(pid, tells.fileno())

    def _is_free(self, path: str) -> bool:
        """True if this process now holds the lock at *path*, or does not wait for that lock."""
        return path not in self._locks or waiting.take(self._locks[path])

    def _watch(self, pid: int, tells: int) -> tuple[str, ...]:
        statuses: list[int] = []
        open_ends = [tells]

        def over() -> bool:
            if open_ends and not self._hear(tells):
                open_ends.clear()
            if self._supervisor.machine.job.ends:
                children.send(pid, signal.SIGKILL)
            for reaped, status, _ in children.reap():
                self._supervisor.apart.discard(reaped)
                statuses.extend((status,) * (reaped == pid))
            return bool(statuses)

        self._supervisor.attend(over, tells)
        self._hear(tells)
        return self._missing if statuses[0] and not self._supervisor.machine.job.ends else ()

    def _hear(self, tells: int) -> bool:
        """Log what the waiting process reports; return False at its end."""
        try:
            text = os.read(tells, 1 << 16)
        except BlockingIOError:
            return True
        if text:
            self._missing = tuple(text.decode().rstrip("\n").rpartition("\n\n")[2].splitlines())
            self._supervisor.log.info("waiting for " + "; for ".join(self._missing))
            if self._supervisor.link is not None:
                self._supervisor.link.tell_needs(self._missing)
        return bool(text)


@contextlib.contextmanager
def _locks(needs: tuple[Need, ...], warn: Callable[[str], None]) -> Iterator[dict[str, int]]:
    locks = waiting.open_locks(needs, warn)
    try:
        yield locks
    finally:
        for lock in locks.values():
            os.close(lock)
