"""A rank of the TCP group's tests: `python tcp_rank.py FOLDER RANK SIZE SCENE`. Prints what it saw, a line each."""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from tests.rank.dataparallel.reduce.ranks import FolderStore
from toolkit.rank.dataparallel.reduce.tcp import TcpGroup
from toolkit.rank.mesh.mesh import HELLO

# Nothing, little, what a socket's buffers hold, and more.
SIZES = (0, 1, 70_001, 3_000_001)
folder, me, size, scene = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = FolderStore(folder)
strangers: list[socket.socket] = []
peers = [rank for rank in range(size) if rank != me]
tcp = TcpGroup(me, tuple(f"rank {rank}" for rank in range(size)), 0.3 if scene == "one is late" and me == 0 else 60.0)
addresses = ["240.0.0.1"] if scene == "one has no address" and me == 1 else ["240.0.0.1", "127.0.0.1"]


def text(sender: int, receiver: int, number: int, count: int) -> bytes:
    return bytes([sender * 16 + receiver + number]) * count


def exchange(number: int, count: int) -> bool:
    """Return whether everyone got what everyone sent to it."""
    sent = {peer: memoryview(text(me, peer, number, count)) for peer in peers}
    came = {peer: bytearray(count) for peer in peers}
    tcp.start(sent, {peer: memoryview(data) for peer, data in came.items()})
    tcp.finish("a test")
    return all(data == text(peer, me, number, count) for peer, data in came.items())


def failing() -> None:
    try:
        exchange(0, SIZES[-1])
        print("no error", flush=True)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}", flush=True)


def put(key: str, value: str) -> None:
    if scene == "the first address leads elsewhere":
        word, doors = json.loads(value)
        value = json.dumps([word, [["127.0.0.1", int(store.get("elsewhere"))], *doors]])
    store.put(key, value)


if scene == "the first address leads elsewhere" and me == 0:
    elsewhere = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = elsewhere.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    store.put("elsewhere", str(elsewhere.getsockname()[1]))
if scene == "a stranger calls" and me == 1:
    for greeting in (b"", b"GET /", HELLO.pack(b"x" * 16, 1)):
        strange = socket.create_connection(json.loads(store.get("contact/0"))[1][0])
        strange.sendall(greeting)
        strange.shutdown(socket.SHUT_WR)
        strangers.append(strange)
try:
    tcp.connect(put, store.get, addresses, 60.0)
except OSError as error:
    print(f"not connected: {error}", flush=True)
    sys.exit()
for strange in strangers:
    print(strange.recv(100), flush=True)
print("exchanged" if all(exchange(number, count) for number in range(3) for count in SIZES) else "mixed up", flush=True)
if scene == "one is killed":
    if me == 1:
        if os.fork() == 0:  # As a DataLoader's worker: it outlives its parent, and must not stand for it.
            tcp.release()
            signal.pause()
        store.put("child", "forked")
        os.kill(os.getpid(), signal.SIGKILL)
    store.get("child")
    failing()
    tcp.close()
elif scene == "one is late":
    if me == 0:
        failing()
        store.put("over", "over")
    else:
        store.get("over")
elif scene == "one closes":
    if me == 0:
        threading.Timer(0.05, tcp.close).start()
        failing()
        store.put("over", "over")
    else:
        store.get("over")
        failing()
elif scene == "who is done leaves":
    tcp.close()
    tcp.release()
    print(f"descriptors {len(list(Path('/proc/self/fd').iterdir()))}", flush=True)
