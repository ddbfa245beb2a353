"""One start of a job: starts a `train` for each host, relays its output, and stops or kills it.

One thread runs one poll loop. lifecycle.py decides; this file acts on processes, pipes, clocks and signals. A host is
its `train` and all processes below it, found by the base folder in their environments: all processes that the platform
would lose with a machine.
"""

import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from toolkit.commands.simulate import feed, stage
from toolkit.commands.simulate.display import Display
from toolkit.commands.simulate.host import ContainedHost, SimulatedHost
from toolkit.commands.simulate.lifecycle import Lifecycle, Order, Reason
from toolkit.commands.simulate.progress import JobProgress
from toolkit.commands.simulate.reserve import Reserve
from toolkit.commands.simulate.stage import StagedHost
from toolkit.commands.simulate.stream import HostStream
from toolkit.exit_codes import of_signal
from toolkit.log import Log
from toolkit.train.supervise.bars import collapsed
from toolkit.train.supervise.children import fork_call, reap, send
from toolkit.train.supervise.kernel import prctl
from toolkit.train.supervise.signals import Signals, StopSignals, stops

DRAIN_S = 2.0  # How long the pipes of a host are still read after its end.
LOOK_S = 1.0  # Interval at which the progress is shown.
BARS_S = 0.25  # The same while progress bars move.
READ_BYTES = 1 << 16


class UserStops:
    """The stop requests of a person: signals to this process."""

    def __init__(self, signals: Signals) -> None:
        self.fd = signals.fd
        self._signals = signals
        self._known = StopSignals()

    def new(self) -> list[int]:
        """Return the signals of the requests that came since the last call."""
        return [
            number for number in self._signals.take() if stops(number) and self._known.is_new(number, time.monotonic())
        ]

    def wait(self, until_s: float) -> list[int]:
        """Wait for a request until *until_s* (monotonic) at most; return the signals of those that came."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        while not (numbers := self.new()) and (left_s := until_s - time.monotonic()) > 0:
            poll.poll(min(left_s, 3600.0) * 1000)
        return numbers


class Simulation:
    """Starts the hosts of a job, relays their output and carries out the orders of the lifecycle.

    *reserve*: space for the job's end on a full disk. *began_s*: from when on the lifecycle counts, monotonic.
    *passed_s*: the seconds of the job before that.
    """

    def __init__(
        self,
        name: str,
        staged: Sequence[StagedHost],
        lifecycle: Lifecycle,
        log: Log,
        display: Display,
        requests: UserStops,
        *,
        reserve: Reserve,
        began_s: float,
        passed_s: float,
    ) -> None:
        self.name = name
        self.lifecycle = lifecycle
        self.by_person = False  # A person stopped the job by Ctrl-C.
        self.stopped_s = self.ended_s = 0.0  # Monotonic: when the hosts were told to stop, when the last had ended.
        self.on_reason: Callable[[Reason], None] = lambda _: None  # Called when the hosts begin to be stopped, and why.
        self._announced_reason: Reason = ""
        self._reserve = reserve
        self._requests = requests
        self._log = log
        self._display = display
        self._hosts = {host.setup.host: (ContainedHost if host.container else SimulatedHost)(host) for host in staged}
        self._feeders: dict[int, feed.Feed] = {}
        self._began_s = began_s
        self._passed_s = passed_s
        self._selector = selectors.PollSelector()

    def run(self) -> None:
        """Start all hosts; return after each has ended and its output is read."""
        self._selector.register(self._requests.fd, selectors.EVENT_READ)
        self._start()
        look_at_s = bars_at_s = 0.0
        while not self.lifecycle.over or any(host.streams for host in self._hosts.values()):
            self._wait(min(bars_at_s, look_at_s) if self._bars_moved else look_at_s)
            for number in self._requests.new():
                self._take_stop(number)
            self._reap()
            self._obey(self.lifecycle.due(self._now_s()))
            self._announce_reason()
            self._stop_due()
            self._close_late()
            if self._now_s() >= look_at_s:
                look_at_s = self._now_s() + LOOK_S
                for host in self._hosts.values():
                    host.update()
                self._show_progress()
            elif self._bars_moved and self._now_s() >= bars_at_s:
                bars_at_s = self._now_s() + BARS_S
                self._show_progress()
        self.ended_s = time.monotonic()
        for host in self._hosts.values():
            host.update()
        self._show_progress()

    def clear(self) -> None:
        """Kill every process, remove every FIFO and close every file of the job, also after an error."""
        for pid in self._feeders:
            send(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for name, host in self._hosts.items():
            if name in self.lifecycle.running and host.pid:
                host.vanish()
                os.waitpid(host.pid, 0)
            for fd in host.streams:
                os.close(fd)
            host.log.close()
            for fed in host.staged.feeds:
                feed.withdraw(fed)
            stage.make_writable(host.staged)
        self._selector.close()

    def last_line(self, name: str) -> str:
        """Return the last line that the script printed on the host called *name*."""
        return self._hosts[name].last_line() if name in self._hosts else ""

    def lost(self) -> tuple[str, ...]:
        """Return a note for each log that lacks lines."""
        return tuple(f"logs/{host.name}.log is not whole: {host.lost}" for host in self._hosts.values() if host.lost)

    def sweep(self) -> None:
        """Kill what the ended hosts have left."""
        for host in self._hosts.values():
            host.sweep()

    def note_late_stop(self, number: int) -> Reason:
        """Note that signal *number* asked for a stop after the hosts' end; return the reason."""
        self.by_person = number == signal.SIGINT
        return "asked"

    def _start(self) -> None:
        # The writers first: their processes must not inherit the hosts' pipes.
        for host in self._hosts.values():
            for fed in host.staged.feeds:
                feed.prepare(fed, 0)
                self._feeders[fork_call(lambda fed=fed: feed.run(fed), prctl=prctl())] = fed  # type: ignore[misc]
        for host in self._hosts.values():
            host.start()
            for fd in host.streams:
                self._selector.register(fd, selectors.EVENT_READ, host)

    def _wait(self, look_at_s: float) -> None:
        times = [look_at_s, self.lifecycle.next_s()]
        for host in self._hosts.values():
            times += [host.closes_at_s, host.stops_at_s]
        timeout_s = max(0.0, min(at_s for at_s in times if at_s is not None) - self._now_s())
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, SimulatedHost):
                self._read(key.data, key.fd)

    def _read(self, host: SimulatedHost, pipe: int) -> None:
        stream = host.streams[pipe]
        try:
            piece = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._end_stream(host, pipe)
            return
        for block in stream.feed(piece):
            self._relay(host, stream, block)
        host.has_output = True

    def _end_stream(self, host: SimulatedHost, pipe: int) -> None:
        stream = host.streams.pop(pipe)
        self._relay(host, stream, stream.flush())
        self._selector.unregister(pipe)
        os.close(pipe)

    def _relay(self, host: SimulatedHost, stream: HostStream, block: bytes) -> None:
        host.keep(collapsed(block), self._reserve.release)
        lines = stream.lines(block)
        if lines:
            self._display.lines(host.name, stream.fd, lines)

    def _reap(self) -> None:
        by_pid = {host.pid: host for host in self._hosts.values()}
        for pid, status, _ in reap():
            if pid in by_pid:
                host = by_pid[pid]
                code = of_signal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._ended(host, code)
            elif pid in self._feeders:
                fed = self._feeders.pop(pid)
                self._log.warning(
                    f"channel {fed.fifo.name}: its files can no longer be read; no further epoch is written"
                )

    def _ended(self, host: SimulatedHost, code: int) -> None:
        vanished = host.name in self.lifecycle.vanished
        host.state = "vanished" if vanished else f"ended with {code}"
        host.closes_at_s = self._now_s() + DRAIN_S
        orders = self.lifecycle.ended(host.name, code, self._now_s())
        if code or vanished:
            self._log.info(f"{host.name} {host.state} after {self._now_s():.1f} s")
        if orders:
            self._log.info("the other hosts are told to stop")
        self._obey(orders)

    def _take_stop(self, number: int) -> None:
        if self.lifecycle.reason in ("", "interrupted"):
            self.by_person = number == signal.SIGINT
            self._log.info("stopping the job as the platform would: SIGTERM, SIGKILL after 120 s; once more kills now")
        self._obey(self.lifecycle.request_stop(self._now_s()))

    def _obey(self, orders: Sequence[tuple[Order, str]]) -> None:
        for order, name in orders:
            host = self._hosts[name]
            if order == "stop":
                host.state = "stopping"
                host.stop(self._now_s())
            else:
                self._log.info(f"{name} is killed")
                host.vanish()

    def _announce_reason(self) -> None:
        reason = self.lifecycle.reason
        if reason == self._announced_reason:
            return
        if not self._announced_reason:
            self.stopped_s = time.monotonic()
        if reason == "interrupted":
            self._log.info("spot interruption: SIGTERM to all hosts, SIGKILL after 120 s")
        self._announced_reason = reason
        self.on_reason(reason)

    def _stop_due(self) -> None:
        for host in self._hosts.values():
            if host.stops_at_s is not None and (host.has_output or self._now_s() >= host.stops_at_s):
                host.stops_at_s = None
                if host.name in self.lifecycle.running:
                    send(host.pid, signal.SIGTERM)

    def _close_late(self) -> None:
        for host in self._hosts.values():
            if host.closes_at_s is not None and (not host.streams or self._now_s() >= host.closes_at_s):
                host.closes_at_s = None
                for pipe in list(host.streams):
                    self._end_stream(host, pipe)

    @property
    def _bars_moved(self) -> bool:
        return any(stream.moved for host in self._hosts.values() for stream in host.streams.values())

    def _show_progress(self) -> None:
        hosts = tuple(host.progress(several=len(self._hosts) > 1) for host in self._hosts.values())
        for host in self._hosts.values():
            for stream in host.streams.values():
                stream.moved = False
        now_s = self._now_s()
        limit_left_s = self.lifecycle.compute_limit_left_s(now_s)
        self._display.progress(
            JobProgress(name=self.name, elapsed_s=self._passed_s + now_s, hosts=hosts, limit_left_s=limit_left_s)
        )

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s
