"""What the `train` processes of one job say to each other, and how each word is proved.

A frame on the wire: 4 bytes length (big-endian, of what follows), 32 bytes HMAC-SHA256, then the message as JSON. The
HMAC covers direction, counter and message under a key made for this connection from the job's key and two nonces, one
of each end (`Seal`): a stranger cannot make one, and one cannot be replayed, reordered or sent back. Pure: no
sockets, no clocks.
"""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Literal

import msgspec

from toolkit.job.outcome import EarlyExit
from toolkit.job.restart import Restart, Steps
from toolkit.records import Record

NONCE_BYTES = 32
MAC_BYTES = 32
HEAD_BYTES = 4
# A failure's traceback is cut to 65,536 characters where it is made; `encode` cuts what JSON makes more of.
LARGEST_BYTES = 1 << 18
LARGEST_UNPROVED_BYTES = 1 << 10
Direction = Literal["up", "down"]


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
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class RefusedError(Exception):
    """A frame that is not of this job: its reason, for the count of refusals."""


def job_key(secret: bytes, hosts: tuple[str, ...], documents: bytes) -> bytes:
    """Return the job's key: from *secret* if there is one, else from what all hosts of the job share and few others."""
    material = secret or b"\0".join((b"no secret", *(host.encode() for host in hosts), documents))
    return hashlib.sha256(b"toolkit link 1\0" + material).digest()


class Seal:
    """Seals and opens the frames of one connection, at one of its ends."""

    def __init__(self, key: bytes, leader_nonce: bytes, follower_nonce: bytes, mine: Direction) -> None:
        self._key = hmac.digest(key, leader_nonce + follower_nonce, "sha256")
        self._mine = mine.encode()
        self._theirs = b"down" if mine == "up" else b"up"
        self._sent = 0
        self._opened = 0

    def seal(self, message: bytes) -> bytes:
        """Return the frame for an encoded *message*."""
        mac = self._mac(self._mine, self._sent, message)
        self._sent += 1
        return (len(message) + MAC_BYTES).to_bytes(HEAD_BYTES, "big") + mac + message

    def open(self, frame: bytes) -> Message:
        """Return the message in *frame* (without its length).

        Raises:
            RefusedError: not sealed by the other end, or not its next one, or no message.
        """
        mac, message = frame[:MAC_BYTES], frame[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._theirs, self._opened, message)):
            raise RefusedError("a message that is not sealed with this job's key, or was seen before")
        self._opened += 1
        return decode(message)

    def _mac(self, direction: bytes, counter: int, message: bytes) -> bytes:
        return hmac.digest(self._key, b"%s %d " % (direction, counter) + message, "sha256")


def encode(message: Message) -> bytes:
    """Return *message* as it is sealed; a report's texts are cut until the other end takes it."""
    encoded = msgspec.json.encode(message)
    while len(encoded) > LARGEST_BYTES - MAC_BYTES and isinstance(message, Failing | Evidence | Ended | Verdict):
        report = message.report
        assert report is not None
        if report.traceback:
            report = msgspec.structs.replace(report, traceback=report.traceback[len(report.traceback) // 2 + 1 :])
        else:
            report = msgspec.structs.replace(report, cause=report.cause[: len(report.cause) // 2])
        message = msgspec.structs.replace(message, report=report)
        encoded = msgspec.json.encode(message)
    return encoded


def decode(message: bytes) -> Message:
    """Return the message in *message*.

    Raises:
        RefusedError: it is none.
    """
    try:
        return _DECODER.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusedError("a message of no known form") from None


class Frames:
    """Completes frames out of the pieces in which a connection delivers them."""

    def __init__(self) -> None:
        self._held = b""
        self.largest_bytes = LARGEST_UNPROVED_BYTES

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield each whole frame, without its length.

        Raises:
            RefusedError: a frame larger than any of ours.
        """
        self._held += piece
        while len(self._held) >= HEAD_BYTES:
            length = int.from_bytes(self._held[:HEAD_BYTES], "big")
            if length > self.largest_bytes:
                raise RefusedError(f"a message of {length} bytes")
            end = HEAD_BYTES + length
            if len(self._held) < end:
                return
            frame, self._held = self._held[HEAD_BYTES:end], self._held[end:]
            yield frame


class Clock:
    """The leader's monotonic clock seen from here: the offset of the exchange with the shortest way, of the last few.

    Monotonic clocks of two machines have nothing in common, but neither is ever set. A machine that was suspended
    stops its own: exchanges that contradict the newest one are then dropped.
    """

    def __init__(self) -> None:
        self._best: list[tuple[int, int]] = []

    def heard(self, sent_ns: int, leader_ns: int, now_ns: int) -> None:
        """Take the answer *leader_ns* to what was sent at *sent_ns* and answered by *now_ns* (this host's clock)."""
        way_ns = now_ns - sent_ns
        if way_ns < 0:
            return
        offset_ns = leader_ns - (sent_ns + now_ns) // 2
        agreeing = [each for each in self._best[-15:] if abs(each[1] - offset_ns) <= (each[0] + way_ns) // 2 + 1]
        self._best = [*agreeing, (way_ns, offset_ns)]

    @property
    def offset_ns(self) -> int:
        """What to add to a time of this host; wrong by at most half the shortest way."""
        return min(self._best)[1] if self._best else 0


def on_clock(message: Message, offset_ns: int) -> Message:
    """Return *message* with the times in it moved by *offset_ns*, to another host's clock."""
    if isinstance(message, Failing | Evidence | Ended | Verdict) and message.report is not None:
        report, early = message.report, message.report.early
        if early is not None:
            early = msgspec.structs.replace(early, at_ns=_moved(early.at_ns, offset_ns))
        report = msgspec.structs.replace(report, failed_ns=_moved(report.failed_ns, offset_ns), early=early)
        return msgspec.structs.replace(message, report=report)
    if isinstance(message, Again):
        restart = msgspec.structs.replace(message.restart, failed_ns=_moved(message.restart.failed_ns, offset_ns))
        return msgspec.structs.replace(message, restart=restart)
    return message


def _moved(at_ns: int, offset_ns: int) -> int:
    """Return a time on another clock; 0 is no time, and stays 0."""
    return max(at_ns + offset_ns, 1) if at_ns else 0
