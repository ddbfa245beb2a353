"""What the `train` processes of one job say to each other; frames.py proves each word. Pure."""

from toolkit.job.outcome import EarlyExit
from toolkit.job.restart import Restart, Steps
from toolkit.records import Record


class Report(Record, frozen=True, kw_only=True):
    """How one host's part failed or ended.

    `primary`: a cause of its own, not the echo of another process's end. `failed_ns`: when, on the sender's monotonic
    clock; on the wire on the leader's (`on_clock`). 0: not known.
    `stopped`: ended by a stop signal. A report with exit_code 0 that is neither says: all well. `alike`: how many more
    ranks ended with the `same` traceback. `lost`: a rank of the host ended because another rank of the job was gone.
    `early`: the first rank of the host that ended with 0; in a verdict, the one that the others lost.
    """

    host: str
    exit_code: int
    primary: bool = False
    stopped: bool = False
    failed_ns: int = 0
    blame: str = ""
    kind: str = ""
    cause: str = ""
    traceback: str = ""
    process: str = ""
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    ended: str = ""
    advice: str = ""
    idle_s: float = 0.0
    odd: tuple[str, ...] = ()
    same: str = ""
    alike: int = 0
    preempted: bool = False
    lost: bool = False
    early: EarlyExit | None = None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 and not self.stopped


class Hello(Record, frozen=True, kw_only=True, tag="hello"):
    """Up, first: who I am. `mark` is this process's own: a second connection of the same host with another is
    refused."""

    host: str
    mark: str


class Welcome(Record, frozen=True, kw_only=True, tag="welcome"):
    """Down, first: the leader's settings hold for all, in seconds; and its clock, so that no report is sent before the
    offset between the two clocks is known."""

    beat_s: float
    patience_s: float
    leader_ns: int


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Up: this host could start its main phase."""


class Go(Record, frozen=True, kw_only=True, tag="go"):
    """Down: all are ready."""


class Ping(Record, frozen=True, kw_only=True, tag="ping"):
    """Up, every beat: alive at *sent_ns* (the follower's monotonic clock)."""

    sent_ns: int


class Pong(Record, frozen=True, kw_only=True, tag="pong"):
    """Down: the answer, with the leader's clock."""

    sent_ns: int
    leader_ns: int


class Idle(Record, frozen=True, kw_only=True, tag="idle"):
    """Up: no rank of this host has moved for so long (0: they move again)."""

    seconds: float


class Failing(Record, frozen=True, kw_only=True, tag="failing"):
    """Both ways: this is the worst known so far; stop your ranks, and answer with Evidence."""

    report: Report


class Evidence(Record, frozen=True, kw_only=True, tag="evidence"):
    """Up: what failed here first, as far as is known now (None: nothing)."""

    report: Report | None


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """Both ways: a stop signal came to *host*; stop as if it had come to you."""

    host: str
    signal: int


class Step(Record, frozen=True, kw_only=True, tag="step"):
    """Up: the first step at which this host's ranks could stop. Down: the step at which every rank does."""

    step: int


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """Up: this host's processes have ended, so; and how far its ranks had come."""

    report: Report
    steps: Steps = Steps()


class Again(Record, frozen=True, kw_only=True, tag="again"):
    """Down: every host's ranks are started again, in place of a Verdict. The next round is `restart.round`; `used` of
    `allowed` restarts are."""

    restart: Restart
    used: int
    allowed: int


class Round(Record, frozen=True, kw_only=True, tag="round"):
    """Up: what this host says from now on is of this round. A new connection begins in round 0."""

    round: int


class StepTimes(Record, frozen=True, kw_only=True, tag="step times"):
    """Up, every second at most: (rank, step, seconds) of some steps of this host's ranks."""

    times: tuple[tuple[int, int, float], ...]


class Notice(Record, frozen=True, kw_only=True, tag="notice"):
    """Down, to one host: say this in the log; it is about a rank there."""

    text: str


class Verdict(Record, frozen=True, kw_only=True, tag="verdict"):
    """Down: how the job ended, for every host."""

    report: Report


class Launch(Record, frozen=True, kw_only=True, tag="launch"):
    """Down, to one host: run this command for a shell, MPI's daemon."""

    host: str
    command: str


class DaemonEnded(Record, frozen=True, kw_only=True, tag="daemon ended"):
    """Up: that daemon has ended, or could not be started, with this code."""

    code: int


class Over(Record, frozen=True, kw_only=True, tag="over"):
    """Down: the leader's main process has ended, nothing will be launched any more."""


class Rested(Record, frozen=True, kw_only=True, tag="rested"):
    """While the job stops, where services wait for all hosts', or where all ranks have ended well. Up: every rank of
    this host has ended. Down: of the job."""


class Bye(Record, frozen=True, kw_only=True, tag="bye"):
    """Up, last: this host has the Verdict."""


Message = (
    Bye
    | Hello
    | Welcome
    | Ready
    | Go
    | Ping
    | Pong
    | Idle
    | Failing
    | Evidence
    | Stop
    | Step
    | Ended
    | Verdict
    | Again
    | Round
    | StepTimes
    | Notice
    | Launch
    | DaemonEnded
    | Over
    | Rested
)
