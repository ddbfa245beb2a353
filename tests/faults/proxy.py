"""Passes TCP connections on: proxy.py PORT TARGET_PORT LARGEST, both on 127.0.0.1. Says "ready" when it listens.

LARGEST: a frame of the link of more bytes is lost, and all that comes after it on its connection, in its direction, as
where a tunnel drops large packets. 0: everything passes.
"""

import selectors
import socket
import sys

HEAD_BYTES = 4
# By the socket that they come from: bytes of a frame that is not whole yet; where a frame was lost.
HELD: dict[socket.socket, bytes] = {}
LOST: set[socket.socket] = set()


def main(port: int, target_port: int, largest_bytes: int) -> None:
    """Pass on until killed."""
    selector = selectors.DefaultSelector()
    selector.register(socket.create_server(("127.0.0.1", port)), selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if key.data is None:
                _accept(selector, sock, target_port)
            elif sock.fileno() >= 0:  # Else closed with its other half a moment ago.
                _pass_on(selector, sock, key.data, largest_bytes)


def _accept(selector: selectors.BaseSelector, listener: socket.socket, target_port: int) -> None:
    near, _ = listener.accept()
    try:
        far = socket.create_connection(("127.0.0.1", target_port))
    except OSError:
        near.close()
        return
    selector.register(near, selectors.EVENT_READ, far)
    selector.register(far, selectors.EVENT_READ, near)


def _pass_on(selector: selectors.BaseSelector, sock: socket.socket, other: socket.socket, largest_bytes: int) -> None:
    try:
        piece = sock.recv(1 << 16)
        other.sendall(_small(sock, piece, largest_bytes) if largest_bytes else piece)
    except OSError:
        piece = b""
    if not piece:
        for end in (sock, other):
            selector.unregister(end)
            end.close()


def _small(sock: socket.socket, piece: bytes, largest_bytes: int) -> bytes:
    """Return what passes: whole frames, up to the first that is too large."""
    held, passed = HELD.get(sock, b"") + piece, b""
    while sock not in LOST and len(held) >= HEAD_BYTES:
        end = HEAD_BYTES + int.from_bytes(held[:HEAD_BYTES], "big")
        if end > largest_bytes:
            LOST.add(sock)
        elif len(held) < end:
            break
        else:
            passed, held = passed + held[:end], held[end:]
    HELD[sock] = held
    return passed


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
