"""Frames of the link are read, and other bytes are refused."""

import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.job.cause import Cause
from toolkit.job.events import DaemonEnded, HangNoticed, Launch, LeaderDone, NextAttempt, RankDone, Stop
from toolkit.job.outcome import EarlyExit
from toolkit.job.restart import Restart
from toolkit.train.peers import leader
from toolkit.train.peers.clock import LeaderClock, move_clock
from toolkit.train.peers.frames import (
    HEAD_BYTES,
    LARGEST_BYTES,
    LARGEST_UNPROVED_BYTES,
    MAC_BYTES,
    Direction,
    FrameRefusedError,
    Frames,
    Seal,
    decode,
    encode,
    job_key,
)
from toolkit.train.peers.messages import EndReport, Failing, Go, Hello, Message, OwnFailure, Ping, Ready, Up

KEY = job_key(b"secret", ("algo-1", "algo-2"), b"{}")
PING = Ping(sent_ns=7)


def ends(leader_key: bytes = KEY, follower_key: bytes = KEY) -> tuple[Seal, Seal]:
    """The seals of a connection's two ends: the leader's, the follower's."""
    leader_nonce, follower_nonce = b"l" * 32, b"f" * 32
    return Seal(leader_key, leader_nonce, follower_nonce, "down"), Seal(
        follower_key, leader_nonce, follower_nonce, "up"
    )


def body(frame: bytes) -> bytes:
    return frame[HEAD_BYTES:]


def test_what_one_end_seals_the_other_opens() -> None:
    leader, follower = ends()
    down: list[Message] = [Go(), Stop(host="algo-1", signal=15), Failing(report=EndReport(host="algo-2", exit_code=3))]
    up: list[Message] = [Ready(), PING, OwnFailure(report=None)]

    heard_below = [follower.open(body(leader.seal(encode(message)))) for message in down]
    heard_above = [leader.open(body(follower.seal(encode(message)))) for message in up]

    assert heard_below == down
    assert heard_above == up


RESTART = {"attempt": 1, "host": "b", "message": "boom", "process": "rank 1", "rank": 1, "exit_code": 3, "failed_ns": 9}


@pytest.mark.parametrize(
    ("sent", "direction", "event"),
    [
        ({"type": "stop", "host": "b", "signal": 15}, "down", Stop(host="b", signal=15)),
        ({"type": "stop", "host": "b", "signal": 15}, "up", Stop(host="b", signal=15)),
        ({"type": "hang_noticed", "seconds": 3.5}, "down", HangNoticed(seconds=3.5)),
        ({"type": "launch", "host": "b", "command": "orted"}, "down", Launch(host="b", command="orted")),
        ({"type": "daemon_ended", "code": 4}, "up", DaemonEnded(code=4)),
        ({"type": "leader_done"}, "down", LeaderDone()),
        (
            {"type": "rank_done", "host": "b", "process": "rank 1"},
            "down",
            RankDone(host="b", process="rank 1"),
        ),
        (
            {"type": "next_attempt", "restart": {**RESTART, "counted": True}, "used": 1, "allowed": 2},
            "down",
            NextAttempt(restart=msgspec.convert({**RESTART, "counted": True}, Restart), used=1, allowed=2),
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_an_event_that_goes_between_hosts_keeps_the_form_that_other_versions_know(
    sent: dict[str, object], direction: Direction, event: Message
) -> None:
    assert decode(msgspec.json.encode(sent), direction) == event
    assert sent.items() <= msgspec.json.decode(encode(event)).items()


def test_the_leader_handles_every_message_that_a_follower_may_send() -> None:
    handled = leader._AT_ANY_TIME.keys() | leader._DURING_AN_ATTEMPT.keys()

    assert set(get_args(Up)) - {Hello} <= handled  # A Hello is handled by the connection.


def test_another_key_opens_nothing() -> None:
    leader, follower = ends(follower_key=job_key(b"other", ("algo-1", "algo-2"), b"{}"))

    with pytest.raises(FrameRefusedError, match="not sealed with this job's key"):
        leader.open(body(follower.seal(encode(PING))))


def test_a_frame_opens_once() -> None:
    leader, follower = ends()
    frame = body(follower.seal(encode(PING)))
    leader.open(frame)

    with pytest.raises(FrameRefusedError):
        leader.open(frame)


def test_frames_open_in_their_order_only() -> None:
    leader, follower = ends()
    follower.seal(encode(Ready()))
    second = body(follower.seal(encode(PING)))

    with pytest.raises(FrameRefusedError):
        leader.open(second)


def test_a_frame_that_is_sent_back_does_not_open() -> None:
    _, follower = ends()

    with pytest.raises(FrameRefusedError):
        follower.open(body(follower.seal(encode(PING))))


def test_a_frame_of_another_connection_does_not_open() -> None:
    leader, _ = ends()
    earlier = Seal(KEY, b"L" * 32, b"f" * 32, "up")

    with pytest.raises(FrameRefusedError):
        leader.open(body(earlier.seal(encode(PING))))


@given(st.data())
def test_a_frame_with_any_byte_changed_or_cut_does_not_open(data: st.DataObject) -> None:
    leader, follower = ends()
    frame = bytearray(body(follower.seal(encode(PING))))
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    else:
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))

    with pytest.raises(FrameRefusedError):
        leader.open(bytes(frame))


@given(st.binary(max_size=200))
def test_garbage_opens_as_nothing(garbage: bytes) -> None:
    leader, _ = ends()

    with pytest.raises(FrameRefusedError):
        leader.open(garbage)


@given(st.binary(max_size=200) | st.sampled_from([b"{}", b'{"type":"ping"}', b'{"type":"no"}', b'"\xff"', b"[" * 5000]))
def test_what_is_sealed_but_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(FrameRefusedError, match="no known form"):
        decode(text, "up")


# A number of each message out of its range, and what must not go in that direction.
WRONG: list[tuple[Direction, str]] = [
    ("up", '{"type":"stop","host":"algo-2","signal":999}'),
    ("up", '{"type":"stop","host":"algo-2","signal":0}'),
    ("up", '{"type":"stop","host":"algo-2","signal":-15}'),
    ("down", '{"type":"stop","host":"","signal":15}'),
    ("up", '{"type":"hello","host":"%s","mark":""}' % ("a" * 256)),
    ("up", '{"type":"idle","seconds":-1}'),
    ("up", '{"type":"idle","seconds":1e300}'),
    ("up", '{"type":"idle","seconds":1e999}'),
    ("up", f'{{"type":"common_step","step":{1 << 63}}}'),
    ("up", '{"type":"attempt","number":-1}'),
    ("up", f'{{"type":"ping","sent_ns":{1 << 64}}}'),
    ("up", '{"type":"rank_step_times","times":[[-1,0,0.5]]}'),
    ("up", '{"type":"daemon_ended","code":256}'),
    ("up", '{"type":"host_ended","report":{"host":"algo-2","exit_code":256}}'),
    ("up", '{"type":"host_ended","report":{"host":"algo-2","exit_code":-1}}'),
    ("up", '{"type":"failing","report":{"host":"algo-2","exit_code":1,"cause":{"rank":-1}}}'),
    ("up", '{"type":"failing","report":{"host":"algo-2","exit_code":1,"cause":{"pid":-1}}}'),
    ("down", '{"type":"welcome","heartbeat_s":0,"heartbeat_timeout_s":8,"leader_ns":1}'),
    ("down", '{"type":"welcome","heartbeat_s":1,"heartbeat_timeout_s":-8,"leader_ns":1}'),
    ("up", '{"type":"go"}'),
    ("up", '{"type":"launch","host":"algo-1","command":"id"}'),
    ("up", '{"type":"verdict","report":{"host":"algo-2","exit_code":1}}'),
    ("down", '{"type":"next_attempt","restart":{"attempt":0,"host":"algo-1","message":""},"used":0,"allowed":1}'),
    ("down", '{"type":"host_ended","report":{"host":"algo-2","exit_code":1}}'),
]


@pytest.mark.parametrize(("direction", "text"), WRONG)
def test_a_member_too_is_refused_what_is_out_of_range_or_not_its_to_say(direction: Direction, text: str) -> None:
    with pytest.raises(FrameRefusedError, match="no known form"):
        decode(text.encode(), direction)


def test_without_a_secret_the_key_is_what_the_hosts_share() -> None:
    hosts = ("algo-1", "algo-2")

    assert job_key(b"", hosts, b"a") == job_key(b"", hosts, b"a")
    assert job_key(b"", hosts, b"a") != job_key(b"", hosts, b"b")
    assert job_key(b"", hosts, b"a") != job_key(b"", ("algo-1", "algo-3"), b"a")
    assert job_key(b"secret", hosts, b"a") == job_key(b"secret", hosts, b"b")


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 200)))
def test_frames_are_whole_however_they_come(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    reader = Frames()
    seen: list[bytes] = []

    for cut in [*cuts, len(stream)]:
        seen += reader.feed(stream[:cut])
        stream = stream[cut:]

    assert seen == frames


def test_a_stranger_cannot_make_us_hold_more_than_a_kilobyte() -> None:
    with pytest.raises(FrameRefusedError, match="larger than any"):
        list(Frames().feed(struct.pack(">I", LARGEST_UNPROVED_BYTES + 1)))


@pytest.mark.parametrize("text", ["x", "\x1b", "\N{EXTRATERRESTRIAL ALIEN}", '"\\'])
def test_any_report_fits_a_frame(text: str) -> None:
    report = EndReport(host="algo-1", exit_code=1, cause=Cause(message=text * 8192, traceback=text * 65536))

    encoded = encode(Failing(report=report))

    heard = decode(encoded, "up")
    assert len(encoded) + MAC_BYTES <= LARGEST_BYTES
    assert isinstance(heard, Failing)
    assert heard.report.cause.message == report.cause.message
    assert report.cause.traceback.endswith(heard.report.cause.traceback)


def test_the_clock_takes_the_exchange_with_the_shortest_way() -> None:
    clock = LeaderClock()
    ahead_ns = 5_000_000_000

    for way_there_ns, way_back_ns in ((900, 100), (10, 10), (50, 4000)):
        sent_ns = 1_000_000
        arrived_ns = sent_ns + way_there_ns
        clock.note_exchange(sent_ns, arrived_ns + ahead_ns, arrived_ns + way_back_ns)

    assert clock.offset_ns == ahead_ns


@given(st.integers(-(10**12), 10**12), st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1))
def test_the_clock_is_wrong_by_half_the_shortest_way_at_most(ahead_ns: int, ways: list[tuple[int, int]]) -> None:
    clock = LeaderClock()

    for there_ns, back_ns in ways:
        clock.note_exchange(0, there_ns + ahead_ns, there_ns + back_ns)

    assert abs(clock.offset_ns - ahead_ns) <= min(sum(way) for way in ways[-16:]) / 2 + 1


def test_a_clock_that_went_back_is_not_believed() -> None:
    clock = LeaderClock()

    clock.note_exchange(1000, 5, 900)

    assert clock.offset_ns == 0


def test_the_times_in_a_report_are_moved_to_the_other_hosts_clock() -> None:
    early = EarlyExit(host="algo-2", process="rank 1", pid=7, at_ns=200)
    report = EndReport(host="algo-2", exit_code=1, cause=Cause(failed_ns=300), early=early)

    moved = move_clock(OwnFailure(report=report), 50)

    assert isinstance(moved, OwnFailure)
    assert moved.report is not None
    assert moved.report.early is not None
    assert (moved.report.cause.failed_ns, moved.report.early.at_ns) == (350, 250)
