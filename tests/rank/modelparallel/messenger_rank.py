"""A rank of the messenger's tests: `python messenger_rank.py FOLDER RANK SIZE SCENE`. Prints what it saw.

SCENE ends with where the ranks are: near (on one host) or far.
"""

import ast
import json
import os
import signal
import sys
import threading
from pathlib import Path

from tests.rank.dataparallel.reduce.ranks import FolderStore
from toolkit.rank.mesh.mesh import ContactInfo, MeshListener
from toolkit.rank.modelparallel.errors import PeerLost
from toolkit.rank.modelparallel.messenger import Message, Messenger

# Nothing, little, more than the reader's stage, more than a socket's buffers hold.
SIZES = (0, 1, 20_000, 300_001, 9_000_001)
folder, me, size, scene = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = FolderStore(folder)
near, scene = scene.endswith("near"), scene.rpartition(", ")[0]
host_id = f"{os.getpid() if not near else 'here'}"
names = [f"rank {rank}" for rank in range(size)]
with MeshListener(me, ["127.0.0.1"], host_id) as listener:
    contact = listener.contact
    store.put(
        f"contact/{me}", json.dumps([contact.token.hex(), host_id, [str(address) for address in contact.addresses]])
    )
    replies = [json.loads(store.get(f"contact/{rank}")) for rank in range(size)]
    contacts = [
        ContactInfo(bytes.fromhex(token), tuple(ast.literal_eval(address) for address in addresses))
        for token, _, addresses in replies
    ]
    peers = listener.connect(contacts, names, 60.0, [peer_host_id for _, peer_host_id, _ in replies])
print({connection.family.name for connection in peers.values()}, flush=True)
messenger = Messenger(me, peers, names)
others = [rank for rank in range(size) if rank != me]


def failing(work: "object") -> None:
    try:
        work()  # type: ignore[operator]
        print("no error", flush=True)
    except (PeerLost, TimeoutError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)


def exchange() -> None:
    """Everyone sends to everyone, itself too, before anyone receives."""
    for count in SIZES:
        for rank in range(size):
            buffers = [bytes([me + 1]) * count, bytearray(b"x")]
            messenger.send(rank, "test", ("of", count), {"from": me, "count": count}, buffers)
    for rank in reversed(range(size)):
        for count in reversed(SIZES):
            message = messenger.receive(rank, "test", ("of", count))
            assert message.payload == {"from": rank, "count": count}, message
            assert [bytes(each) for each in message.buffers] == [bytes([rank + 1]) * count, b"x"]
            message.buffers[1][0] = 7  # Writable.
    for rank in range(size):
        for number in range(50):
            messenger.send(rank, "many", None, number)
    for rank in range(size):
        assert [messenger.receive(rank, "many").payload for _ in range(50)] == list(range(50))
    for rank in range(size):
        messenger.send(rank, "any")
    assert sorted(messenger.receive(None, "any").source for _ in range(size)) == list(range(size))


def call_back() -> None:
    """Messages before and after `on`, in order, and answers from within the callback."""
    seen: list[Message] = []
    done = threading.Event()

    def took(message: Message) -> None:
        seen.append(message)
        messenger.send(message.source, "answer", None, message.payload)
        if len(seen) == 20 * len(others):
            done.set()

    for rank in others:
        for number in range(20):
            messenger.send(rank, "call", None, number)
            messenger.send(rank, "first")
    messenger.receive(others[0], "first")  # By now at least one message to call back with has come.
    messenger.on("call", took)
    for rank in others:
        for number in range(20):
            assert messenger.receive(rank, "answer").payload == number
    assert done.wait(60)
    for rank in others:
        assert [each.payload for each in seen if each.source == rank] == list(range(20)), seen


if scene == "exchange":
    exchange()
    call_back()
    failing(lambda: messenger.receive(others[0], "nothing", timeout_s=0.01))
    for rank in others:
        messenger.send(rank, "over")
    [messenger.receive(rank, "over") for rank in others]
    print("exchanged", flush=True)
    messenger.close()
elif scene == "one is killed":
    if me == 1:
        if os.fork() == 0:  # As a DataLoader's worker: it outlives its parent, and must not stand for it.
            signal.pause()
        messenger.send(0, "last words", None, "still here")
        store.get("ready")
        os.kill(os.getpid(), signal.SIGKILL)
    lost: list[PeerLost] = []
    messenger.on_lost(lost.append)
    if me == 0:
        store.put("ready", "ready")
    failing(lambda: messenger.receive(2 if me == 0 else 0, "never"))  # Another rank's message.
    failing(lambda: messenger.receive(1, "never"))
    failing(lambda: messenger.send(1, "more"))
    if me == 0:
        print(messenger.receive(1, "last words").payload, flush=True)
    print([(each.rank, each.said_goodbye) for each in lost], flush=True)
    store.put(f"seen-{me}", "seen")
    [store.get(f"seen-{rank}") for rank in (0, 2)]
elif scene == "one says goodbye":
    lost = []
    messenger.on_lost(lost.append)
    if me == 1:
        messenger.send(0, "much", None, None, [bytes(8_000_000)])
        messenger.close()
    else:
        failing(lambda: messenger.receive(1, "never"))
        if me == 0:
            print(len(messenger.receive(1, "much").buffers[0]), flush=True)
        messenger.send(2 - me, "between us")
        messenger.receive(2 - me, "between us")
        print([(each.rank, each.said_goodbye) for each in lost], flush=True)
        store.put(f"seen-{me}", "seen")
        [store.get(f"seen-{rank}") for rank in (0, 2)]
elif scene == "a callback fails":

    def fails(message: Message) -> None:
        raise ValueError("in the callback")

    messenger.on("call", fails)
    messenger.send(others[0], "ready")
    messenger.receive(others[0], "ready")
    messenger.send(others[0], "call")
    failing(lambda: messenger.receive(others[0], "never"))
    messenger.close()
