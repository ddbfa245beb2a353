"""Serves the requests of rank shims, mpirun's agents and daemons during one phase (shim_server.py)."""

import signal
from collections.abc import Callable

from toolkit.job.events import Event, Launch, LauncherSignals
from toolkit.log import Log
from toolkit.train.supervise.daemons import Daemons
from toolkit.train.supervise.phase_record import PhaseRecord
from toolkit.train.supervise.poll_loop import PollLoop
from toolkit.train.supervise.processes import Processes
from toolkit.train.supervise.shim_server import CommandRequest, RankRequest, ShimConnection
from toolkit.train.supervise.stop_machine import StopMachine


class ShimRequests:
    """Opens the phase's server, if the phase needs one. *post* takes the events."""

    def __init__(
        self,
        poll_loop: PollLoop,
        processes: Processes,
        daemons: Daemons,
        record: PhaseRecord,
        machine: StopMachine,
        log: Log,
        post: Callable[[Event], None],
    ) -> None:
        self._poll_loop = poll_loop
        self._processes = processes
        self._daemons = daemons
        self._record = record
        self._machine = machine
        self._log = log
        self._post = post
        self._server = processes.open_shim_server()
        if self._server is not None:
            poll_loop.watch(self._server.fd, self._on_connect)

    def close(self) -> None:
        """Close the server."""
        if self._server is not None:
            self._server.close()

    def _on_connect(self) -> None:
        while self._server is not None and (shim := self._server.accept()) is not None:
            self._poll_loop.watch(shim.fd, lambda shim=shim: self._on_shim(shim))  # type: ignore[misc]

    def _on_shim(self, shim: ShimConnection) -> None:
        numbers, gone = shim.read()
        if shim.is_strange:
            self._log.warning(f"pid {shim.peer} sent to the socket of the rank shims what none of them sends: ignored")
        if gone:
            self._poll_loop.unwatch(shim.fd)
            shim.close()
        elif shim.asked is not None and shim.pid is None and not shim.answered:
            self._on_asked(shim, shim.asked)
        if (gone or numbers) and shim.pid is not None and shim.pid in self._processes.living:
            if self._machine.policy.as_one:
                self._record.aborted.add(shim.pid)
            self._post(LauncherSignals())

    def _on_asked(self, connection: ShimConnection, request: RankRequest | Launch | CommandRequest) -> None:
        if isinstance(request, RankRequest) and not self._machine.undisturbed:
            connection.answer(code=None, number=signal.SIGTERM)
        elif isinstance(request, RankRequest):
            self._processes.start_rank(connection, request)
        elif isinstance(request, Launch):
            problem = self._daemons.on_launch(connection, request)
            if problem:
                self._log.error(problem)
        else:
            self._daemons.on_waiter(connection)
