"""Makes reads of a folder fail: at once, in the middle of a listing, or by too few bytes."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ERRORS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE, errno.ENOMEM)


class Faults:
    """Calls of the operating system that fail, each with the chance *share*, once `inject` is entered."""

    def __init__(self, chance: random.Random, share: float) -> None:
        self._chance, self._share = chance, share
        self.count = 0

    def hits(self) -> bool:
        hit = self._chance.random() < self._share
        self.count += hit
        return hit

    def maybe(self, path: object) -> None:
        if self.hits():
            number = self._chance.choice(ERRORS)
            raise OSError(number, os.strerror(number), path)

    @contextmanager
    def inject(self, folder: str) -> Iterator[None]:
        """Let reads of what is below *folder* fail."""
        real = {name: getattr(os, name) for name in ("scandir", "stat", "lstat", "open", "pread", "readlink")}

        def is_below(path: object) -> bool:
            return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(folder)

        def failing(name: str) -> Callable[..., Any]:
            def call(path: object, *more: Any, **options: Any) -> Any:
                if is_below(path):
                    self.maybe(path)
                return real[name](path, *more, **options)

            return call

        def scandir(path: Any) -> Any:
            if not is_below(path):
                return real["scandir"](path)
            self.maybe(path)
            return _Listing(real["scandir"](path), self)

        def pread(fd: int, size_bytes: int, start: int) -> bytes:
            self.maybe(None)
            content: bytes = real["pread"](fd, size_bytes, start)
            return content[: self._chance.randrange(len(content) + 1)] if self.hits() else content

        fakes = {name: failing(name) for name in ("stat", "lstat", "open", "readlink")}
        for name, fake in {**fakes, "scandir": scandir, "pread": pread}.items():
            setattr(os, name, fake)
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)


class _Listing:
    def __init__(self, real: Any, faults: Faults) -> None:
        self._real, self._faults = real, faults

    def __enter__(self) -> "_Listing":
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __iter__(self) -> Iterator["_Listed"]:
        for entry in self._real:
            self._faults.maybe(None)
            yield _Listed(entry, self._faults)


class _Listed:
    def __init__(self, entry: "os.DirEntry[str]", faults: Faults) -> None:
        self._entry, self._faults = entry, faults
        self.name, self.path = entry.name, entry.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._faults.maybe(self.path)
        return self._entry.stat(follow_symlinks=follow_symlinks)
