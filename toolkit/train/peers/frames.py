"""Pure: the frames in which messages are sent, and how each is authenticated.

A frame: 4 bytes length (big-endian, of the rest), 32 bytes HMAC-SHA256, then the message as JSON. The HMAC covers
direction, counter and message. Its key is made for each connection, from the job's key and a nonce of each end
(`Seal`). So nobody without the job's key can make a frame, and no frame can be replayed, reordered or sent back.
"""

import hashlib
import hmac
from collections.abc import Iterator
from typing import Literal

import msgspec

from toolkit import records
from toolkit.train.peers.messages import Down, Message, Up, WithReport

NONCE_BYTES = 32
MAC_BYTES = 32
HEAD_BYTES = 4
# A traceback has at most 65,536 characters; `encode` cuts texts that JSON makes too long.
LARGEST_BYTES = 1 << 18
LARGEST_UNPROVED_BYTES = 1 << 10
# What the leader says, unsealed, to a host whose proof it does not accept. A connection that only ends says nothing: a
# flood of strangers, a bad network or a leader that is being stopped ends connections, too.
REFUSAL = b"refused"
Direction = Literal["up", "down"]
_DECODERS: dict[Direction, msgspec.json.Decoder[Message]] = {
    "up": msgspec.json.Decoder(Up),
    "down": msgspec.json.Decoder(Down),
}
# A closed list, without any length, name or number that the other end could choose: each is counted, and logged once.
Reason = Literal[
    "a message that is not sealed with this job's key, or was seen before",
    "a message of no known form",
    "a message larger than any of the link's",
    "a host that is not of this job",
    "a host whose documents or version differ from the leader's",
    "a second train of a host that has joined already",
    "a host that had joined an earlier train of the leader",
    "something at the leader's address that is no leader",
    "the leader of another job at the leader's address",
    "a connection that proved nothing in time",
    "a connection beyond those that may wait to prove themselves",
    "a connection for which no descriptor was left (ulimit -n)",
]


class FrameRefusedError(Exception):
    """A frame that does not belong to this job."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


def job_key(secret: bytes, hosts: tuple[str, ...], documents: bytes) -> bytes:
    """Return the job's key: from *secret* if there is one, else from *hosts* and *documents*, which few others know."""
    material = secret or b"\0".join((b"no secret", *(host.encode() for host in hosts), documents))
    return hashlib.sha256(b"toolkit link 1\0" + material).digest()


class Seal:
    """Seals and opens the frames of one connection, at one of its ends."""

    def __init__(self, key: bytes, leader_nonce: bytes, follower_nonce: bytes, direction: Direction) -> None:
        self._key = hmac.digest(key, leader_nonce + follower_nonce, "sha256")
        self._theirs: Direction = "down" if direction == "up" else "up"
        self._seals, self._opens = direction.encode(), self._theirs.encode()
        self._sent = 0
        self._opened = 0

    def seal(self, message: bytes) -> bytes:
        """Return the frame for an encoded *message*."""
        mac = self._mac(self._seals, self._sent, message)
        self._sent += 1
        return (len(message) + MAC_BYTES).to_bytes(HEAD_BYTES, "big") + mac + message

    def open(self, frame: bytes) -> Message:
        """Return the message in *frame* (without its length).

        Raises:
            FrameRefusedError: the other end did not seal it, it is not the next frame, or it is no message.
        """
        mac, message = frame[:MAC_BYTES], frame[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._opens, self._opened, message)):
            raise FrameRefusedError("a message that is not sealed with this job's key, or was seen before")
        self._opened += 1
        return decode(message, self._theirs)

    def _mac(self, direction: bytes, counter: int, message: bytes) -> bytes:
        return hmac.digest(self._key, b"%s %d " % (direction, counter) + message, "sha256")


def encode(message: Message) -> bytes:
    """Return *message* as JSON; the texts of a report are cut until it fits a frame."""
    encoded = records.encode(message)
    while len(encoded) > LARGEST_BYTES - MAC_BYTES and isinstance(message, WithReport):
        report = message.report
        assert report is not None
        cause = report.cause
        if cause.traceback:
            cause = msgspec.structs.replace(cause, traceback=cause.traceback[len(cause.traceback) // 2 + 1 :])
        else:
            cause = msgspec.structs.replace(cause, message=cause.message[: len(cause.message) // 2])
        message = msgspec.structs.replace(message, report=msgspec.structs.replace(report, cause=cause))
        encoded = records.encode(message)
    return encoded


def decode(message: bytes, direction: Direction) -> Message:
    """Return the decoded *message*.

    Raises:
        FrameRefusedError: it is no message, none of this *direction*, or a number in it is out of its range.
    """
    try:
        return _DECODERS[direction].decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FrameRefusedError("a message of no known form") from None


class Frames:
    """Assembles frames from the pieces in which a connection delivers them."""

    def __init__(self) -> None:
        self._held = b""
        self.largest_bytes = LARGEST_UNPROVED_BYTES

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield each whole frame, without its length.

        Raises:
            FrameRefusedError: a frame is larger than any of the link's.
        """
        self._held += piece
        while len(self._held) >= HEAD_BYTES:
            length = int.from_bytes(self._held[:HEAD_BYTES], "big")
            if length > self.largest_bytes:
                raise FrameRefusedError("a message larger than any of the link's")
            end = HEAD_BYTES + length
            if len(self._held) < end:
                return
            frame, self._held = self._held[HEAD_BYTES:end], self._held[end:]
            yield frame
