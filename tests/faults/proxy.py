"""Passes TCP connections on: proxy.py PORT TARGET_PORT, both on 127.0.0.1. Says "ready" when it listens."""

import selectors
import socket
import sys


def main(port: int, target_port: int) -> None:
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
                _pass_on(selector, sock, key.data)


def _accept(selector: selectors.BaseSelector, listener: socket.socket, target_port: int) -> None:
    near, _ = listener.accept()
    try:
        far = socket.create_connection(("127.0.0.1", target_port))
    except OSError:
        near.close()
        return
    selector.register(near, selectors.EVENT_READ, far)
    selector.register(far, selectors.EVENT_READ, near)


def _pass_on(selector: selectors.BaseSelector, sock: socket.socket, other: socket.socket) -> None:
    try:
        piece = sock.recv(1 << 16)
        other.sendall(piece)
    except OSError:
        piece = b""
    if not piece:
        for each in (sock, other):
            selector.unregister(each)
            each.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
