"""What is known of how processes ended, and of those that are about to: the verdict is made of it."""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from toolkit import slate
from toolkit.job.outcome import Exit
from toolkit.supervise.process import Process
from toolkit.supervise.relay import Stream


class Evidence:
    """The exceptions that ranks left on the slate in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._raised: dict[int, bytes] = {}

    def raised_by(self, pid: int) -> tuple[int | None, int]:
        """Return when the main thread of a process raised the exception it died of (None: the hook saw none), and the
        code that this leads to."""
        found = slate.raised(self._folder, pid)
        if found is None or found.thread != "main":
            return None, 1
        self._raised[pid] = found.text.strip().encode()
        return found.time_ns, found.code

    def doomed(self, living: Iterable[Process]) -> Iterator[Exit]:
        """Yield the ends to come of ranks that live, but have raised the exception they will die of."""
        for process in living:
            raised_ns, code = self.raised_by(process.pid)
            if raised_ns is not None and process.rank is not None:
                yield process.exit(code << 8, time.monotonic_ns(), raised_ns)

    def tails(
        self, exits: Iterable[Exit], streams: Mapping[str, tuple[Stream, Stream]]
    ) -> dict[str, tuple[bytes, bytes]]:
        """Return what each process said last on stderr and stdout, the exception that it died of among it: that may not
        be printed yet, or never be (our signal came first), and without it an echo of another's failure would look like
        a cause."""
        tails = {name: (err.tail.text(), out.tail.text()) for name, (out, err) in streams.items()}
        for end in exits:
            raised, (err, out) = self._raised.get(end.pid, b""), tails.get(end.process, (b"", b""))
            if raised and raised[-512:] not in err:
                tails[end.process] = (b"\n".join((err, raised, b"")), out)
        return tails
