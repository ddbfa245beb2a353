"""Writes the times of this process's steps into `steps-<pid>`, a ring that the monitor drains
(status_pages/layout.py)."""

import os

from ...status_pages import layout as layout

_PACK_INTO = layout.STEPS_RECORD.pack_into
_SIZE = layout.STEPS_RECORD.size
_START = layout.STEPS_HEAD.size
_COUNT_AT = _START - 8
BYTES = _START + layout.STEPS_KEPT * _SIZE


class StepRing:
    """This process's ring, mapped into memory: a record is a copy of 152 bytes, without a system call."""

    __slots__ = ("_view", "_written")

    def __init__(self, folder: str) -> None:
        """Make the file of this process in *folder*.

        Raises:
            OSError: it cannot be made.
        """
        from mmap import mmap

        pid = os.getpid()
        fd = os.open(os.path.join(folder, layout.STEPS_NAME % pid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Every byte is written before it is mapped: storing into a page for which the disk has no room is a SIGBUS.
            start = layout.STEPS_HEAD.pack(layout.VERSION, pid, layout.STEPS_KEPT, 0).ljust(BYTES, b"\0")
            if os.pwrite(fd, start, 0) != BYTES:
                raise OSError("the disk has no room for the step times")
            self._view: mmap = mmap(fd, BYTES)
        finally:
            os.close(fd)
        self._written = 0

    def add(self, step: int, end_ns: int, *durations_ns: int) -> None:
        """Add a step; *durations_ns* as in STEPS_RECORD, NONE where not measured."""
        number = self._written + 1
        offset = _START + self._written % layout.STEPS_KEPT * _SIZE
        _PACK_INTO(self._view, offset, number, step, end_ns, *durations_ns)
        self._view[_COUNT_AT:_START] = number.to_bytes(8, "little")
        self._written = number
