"""Pure: what the stop machine knows of the whole job, whether a phase runs or not."""

from toolkit.job import events
from toolkit.train.supervise.signals import StopSignals
from toolkit.train.supervise.stop_facts import HostFacts
from toolkit.train.supervise.stop_table import Cue


class JobState:
    """The stops of the job, and how far it has come; *host*: this host's name."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._requests = StopSignals()
        self._stopped_here = False
        # The first stop, the time at which it came, and the last stop: ranks get the signal of each.
        self.stop: events.Stop | None = None
        self.stopped_at_ns: int | None = None
        self.last_stop: events.Stop | None = None
        self.peer_failed = False
        self.job_ended = False
        self.may_start = False
        self.leader_done = False

    @property
    def ends(self) -> bool:
        """True if no process should be started any more: a stop came, another host failed, or the job has ended."""
        return self.stop is not None or self.peer_failed or self.job_ended

    @property
    def insisted(self) -> bool:
        """True if a stop signal came to this host, and another one a second or more later."""
        return self._requests.insisted

    def is_of_this_host(self, stop: events.Stop) -> bool:
        return stop.host == self.host

    def note_stop(self, stop: events.Stop, facts: HostFacts) -> Cue | None:
        """Note *stop* and return its cue; None if it is the same request as the one before."""
        signalled = self.is_of_this_host(stop) and not stop.rule
        if signalled and not self._requests.is_new(stop.signal, facts.now_s):
            return None
        if self.stop is None:
            self.stop, self.stopped_at_ns = stop, facts.now_ns
        self.last_stop = stop
        # Only a second signal to this host kills: a platform may signal all hosts, and another host's stop may arrive
        # before this host's own signal. A rule's stop is no signal.
        again = signalled and self._stopped_here
        self._stopped_here = self._stopped_here or signalled
        return Cue.STOP_AGAIN if again else Cue.STOP

    def note(self, event: events.Event) -> None:
        """Note any other event, if it says something about the whole job."""
        match event:
            case events.NextAttempt():
                self.peer_failed = self.job_ended = self.may_start = self.leader_done = False
            case events.AllReady():
                self.may_start = True
            case events.PeerFailed():
                self.peer_failed = True
            case events.JobEnded():
                self.job_ended = True
            case events.LeaderDone():
                self.leader_done = True
