"""Runs `train` with a fault in one of its calls of the system: python faulty_calls.py NUMBER ERROR FILE [after].

Calls of the standard library's C functions that reach the operating system are numbered from the first line of `train`
on, until it forks for the script; with "after" from the verdict on, when the script has ended. The one with NUMBER
raises ERROR (OSError, MemoryError, RuntimeError) instead of being made. With a NUMBER that none has, FILE gets the
names of all calls, one in each line; else that of the one that failed.
"""

import errno
import os
import sys
from types import FrameType
from typing import Any

# Modules whose C functions, and the methods of whose types, make system calls.
MODULES = frozenset({"posix", "time", "_io", "io", "fcntl", "resource", "select", "_signal", "_socket", "mmap"})
ERRORS: dict[str, BaseException] = {
    "OSError": OSError(errno.EIO, "a planted fault"),
    "MemoryError": MemoryError("a planted fault"),
    "RuntimeError": RuntimeError("a planted fault"),
}


class Fault:
    """The profile function that counts the calls and makes one of them fail."""

    def __init__(self, number: int, error: BaseException, file: str, *, after: bool) -> None:
        self._after = after
        self._counts = not after
        self._number = number
        self._error = error
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._pid = os.getpid()
        self._calls = 0
        self._names: list[str] = []

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and frame.f_code.co_name == "of_end":
            self._counts = True
        if event != "c_call" or not self._counts:
            return
        owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if owner not in MODULES or function is os.fspath:
            return
        if function is os._exit or os.getpid() != self._pid:
            sys.setprofile(None)
            return
        name = f"{owner}.{function.__qualname__} in {frame.f_code.co_filename}:{frame.f_lineno}"
        if not self._after and frame.f_code.co_name == "spawn" and function.__name__ == "fork":
            self.end()
            return
        self._names.append(name)
        self._calls += 1
        if self._calls - 1 == self._number:
            sys.setprofile(None)
            os.write(self._file, f"{name}\n".encode())
            raise self._error

    def end(self) -> None:
        """Write the names of the calls, unless one of them has failed."""
        sys.setprofile(None)  # First: the next calls are none of `train`'s.
        if os.getpid() == self._pid and self._calls <= self._number:
            os.write(self._file, "".join(f"{name}\n" for name in self._names).encode())


if __name__ == "__main__":
    after = sys.argv[4:] == ["after"]
    fault = Fault(int(sys.argv[1]), ERRORS[sys.argv[2]], sys.argv[3], after=after)
    sys.argv = ["train"]
    from toolkit.cli.start import train

    sys.setprofile(fault)
    try:
        train()
    finally:
        if after:
            fault.end()
