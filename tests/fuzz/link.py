"""A member of the job that has gone mad, and strangers at the leader's port, do no harm to the link."""

import json
import random
import socket
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from tests.fuzz.documents import texts, values
from tests.fuzz.target import target
from tests.train.peers.wired import TIMES, party
from toolkit.job.events import AllReady
from toolkit.train.peers.follower import Follower
from toolkit.train.peers.frames import NONCE_BYTES, Direction, FrameRefusedError, Reason, decode, encode
from toolkit.train.peers.leader import Leader
from toolkit.train.peers.messages import Down, Ready, Up
from toolkit.train.peers.protocol import LogLine, Send

HOSTS = ("algo-1", "algo-2", "algo-3")
SIDES: dict[Direction, tuple[type[msgspec.Struct], ...]] = {"up": get_args(Up), "down": get_args(Down)}
NUMBERS = (0, 1, 2, 7, 9, 15, 64, 143, 256, 999, -1, 1 << 31, 1 << 63, -(1 << 63), 10**400, 0.5, 1e308, -1e308)
plain: st.SearchStrategy[Any] = (
    st.sampled_from((*HOSTS, *NUMBERS, True, None, "", "x", [], {}, [["a", 1]])) | texts | values
)


def _fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """A message of *kind* whose fields hold what they may, or anything."""
    tag = kind.__struct_config__.tag
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(kind):
        strategies[field.encode_name] = _report() if field.name == "report" else _likely(field.name)
    return st.fixed_dictionaries({}, optional=strategies).map(lambda fields: {"type": tag, **fields})


def _likely(name: str) -> st.SearchStrategy[Any]:
    likely: dict[str, st.SearchStrategy[Any]] = {
        "host": st.sampled_from(HOSTS),
        "signal": st.integers(1, 64),
        "exit_code": st.integers(0, 255),
        "failed_ns": st.integers(0, 1 << 62),
        "steps": st.just({"seen": True, "highest": 3}),
        "restart": st.fixed_dictionaries({"attempt": st.integers(0, 3), "reason": texts}),
        "times": st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 9)), max_size=2),
    }
    return likely.get(name, plain) | likely.get(name, plain) | likely.get(name, plain) | plain


def _report() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"host": _likely("host"), "exit_code": _likely("exit_code")},
        optional={
            **{name: _likely(name) for name in ("stopped", "idle_s", "of_job")},
            "cause": st.fixed_dictionaries(
                {}, optional={name: _likely(name) for name in ("failed_ns", "primary", "cause", "rank", "lost")}
            )
            | plain,
        },
    )


def _sides() -> st.SearchStrategy[tuple[Direction, list[Any]]]:
    return st.sampled_from(tuple(SIDES)).flatmap(
        lambda side: st.tuples(st.just(side), st.lists(st.one_of([_fields(kind) for kind in SIDES[side]]), max_size=8))
    )


@target(_sides(), st.lists(st.floats(0, 20), min_size=8, max_size=8))
def a_hosts_messages_are_taken_or_refused(conversation: tuple[Direction, list[Any]], waits_s: list[float]) -> None:
    direction, messages = conversation
    protocol: Leader | Follower = (
        Leader(HOSTS, TIMES, 0.0) if direction == "up" else Follower("algo-2", "algo-1", TIMES, 0.0)
    )
    now_s, now_ns = 0.0, 1_000_000
    actions = [] if isinstance(protocol, Follower) else protocol.on_connect("algo-2", now_s, now_ns)
    if isinstance(protocol, Follower):
        actions += protocol.on_connect(now_s, now_ns)
    for content, wait_s in zip(messages, waits_s, strict=False):
        now_s, now_ns = now_s + wait_s, now_ns + int(wait_s * 1e9)
        try:
            message = decode(json.dumps(content).encode(), direction)
        except FrameRefusedError as error:
            assert error.reason in get_args(Reason)
            continue
        if isinstance(protocol, Leader):
            actions += protocol.on_message("algo-2", message, now_s, now_ns)
        else:
            actions += protocol.on_message(message, now_s)
        actions += protocol.tick(now_s, now_ns)
        assert protocol.due_in_s(now_s) <= 3600
    for action in actions:
        if isinstance(action, Send):
            assert len(encode(action.message)) < 1 << 18
    assert protocol.verdict is None or 0 <= protocol.verdict.exit_code <= 255


PIECES = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\4\0",
    (NONCE_BYTES + 32 + 8).to_bytes(4, "big"),
    b"x" * 40,
    b"x" * 2000,
    b"\0\0\0\1",
    b"{}",
    b"",
)
pieces = (
    st.sampled_from(PIECES)
    | st.binary(max_size=80)
    | st.integers(0, 1 << 32).map(lambda n: (n & 0xFFFFFFFF).to_bytes(4, "big"))
)


@target(st.lists(st.lists(pieces, max_size=4), min_size=1, max_size=12), st.integers(0, 1 << 30))
def strangers_cost_the_link_a_line_each_kind(conversations: list[list[bytes]], order: int) -> None:
    chance = random.Random(order)
    with party(2) as together:
        (follower,) = together.followers()
        guests = [(socket.create_connection(together.where, timeout=10), list(words)) for words in conversations]
        while any(words for _, words in guests):
            guest, words = chance.choice([guest for guest in guests if guest[1]])
            try:
                guest.sendall(words.pop(0))
            except OSError:
                words.clear()  # It has been turned away.
            together.turn(0)
        follower.tell(Ready())
        together.leader.tell(Ready())
        together.until(lambda: all(together.told(link, AllReady) for link in together.links))
        for guest, _ in guests:
            guest.close()

        refused = together.leader.refused
        assert set(refused) <= set(get_args(Reason))
        said_of = [action for action in together.done[together.leader] if isinstance(action, LogLine)]
        lines = [action for action in said_of if "refused" in action.text]
        assert len(lines) <= len(refused)
