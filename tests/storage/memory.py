"""A storage in memory whose requests fail as a test says, with the methods of toolkit.storage.store.StorageClient."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from toolkit.errors import PlatformError
from toolkit.storage.scan import FileState, file_state
from toolkit.storage.store import StoredObject


class Vanished(BaseException):
    """The host is gone in the middle of a request."""


class Memory:
    """Objects by key. `on_request` may raise before a request is done, `on_answer` after it; both get its name."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_request: Callable[[str], None] = lambda name: None
        self.on_answer: Callable[[str], None] = lambda name: None

    def find(self, key: str) -> StoredObject | None:
        self.on_request("find")
        if key not in self.objects:
            return None
        content = self.objects[key]
        return StoredObject(key=key, size_bytes=len(content), tag=f"{zlib.crc32(content):x}")

    def read(self, stored: StoredObject) -> bytes:
        self.on_request("read")
        return self.objects[stored.key]

    def piece(self, stored: StoredObject, start: int, end: int) -> memoryview:
        return memoryview(self.read(stored)[start:end])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self.on_request("list")
        for key in sorted(self.objects):
            if key.startswith(f"{prefix}/") or not prefix:
                yield StoredObject(key=key, size_bytes=len(self.objects[key]))

    def write(self, key: str, content: bytes) -> None:
        self.on_request("write")
        self.objects[key] = bytes(content)
        self.on_answer("write")

    def upload(
        self, key: str, path: Path, state: FileState | None = None, note: Callable[[int], None] = lambda _: None
    ) -> None:
        self.on_request("upload")
        assert state is None or state == file_state(path)
        self.objects[key] = path.read_bytes()
        note(len(self.objects[key]))
        self.on_answer("upload")

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.on_request("delete")
            self.objects.pop(key, None)
            self.on_answer("delete")


def refuse(name: str) -> None:
    """Fail as storage that does not answer."""
    raise PlatformError(f"cannot {name}: no answer")
