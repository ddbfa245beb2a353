"""The program of every rank of the soak: print hard, in bursts, and keep count of what was written; break when told.

Arguments, from the job's hyperparameters: --meet FOLDER, --lines-per-s N. The first rank of a host also writes
checkpoints. In FOLDER: `count-RANK-ATTEMPT`, three 64-bit
numbers in the machine's byte order: lines on stdout, on stderr, and with a metric; `fault-RANK`: how to break, written
by the harness; `end`: end with 0.

A line has at most 4,000 bytes: so its write(2) to the pipe is atomic (pipe(7)), and a kill leaves no half line. The
number is raised after the write, so a rank that is killed between the two has written one line more than it counted.
"""

import argparse
import mmap
import os
import random
import signal
import struct
import sys
import time
import zlib
from pathlib import Path

from tests.soak import checkpoints

LETTERS = bytes(range(97, 123)) * 200


class Writer:
    """Writes numbered lines, each with its own checksum, and counts them where a kill does not lose the count."""

    def __init__(self, meet: Path, rank: str, attempt: str) -> None:
        self._who = f"{rank} {attempt}".encode()
        self._counts = [0, 0, 0]
        path = meet / f"count-{rank}-{attempt}"
        path.with_suffix(".new").write_bytes(bytes(24))
        path.with_suffix(".new").rename(path)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 24)

    def line(self) -> None:
        to_stderr = random.random() < 0.1
        has_metric = random.random() < 0.02
        size = random.choice((20, 60, 60, 60, 100, 300, 3800))
        start = random.randrange(26)
        metric = b"step=%d loss=0.25 " % int(time.monotonic()) if has_metric else b""
        head = b"soak %s %s %d %s%s" % (
            self._who,
            b"err" if to_stderr else b"out",
            self._counts[to_stderr],
            metric,
            LETTERS[start : start + size],
        )
        os.write(2 if to_stderr else 1, b"%s %08x\n" % (head, zlib.crc32(head)))
        self._counts[to_stderr] += 1
        self._counts[2] += has_metric
        struct.pack_into("=3Q", self._map, 0, *self._counts)


def broken(how: str) -> None:
    if how == "raise":
        raise RuntimeError("the soak's fault")
    if how == "exit":
        sys.exit(3)
    os.kill(os.getpid(), {"abort": signal.SIGABRT, "kill": signal.SIGKILL, "terminate": signal.SIGTERM}[how])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--meet", type=Path)
    parser.add_argument("--lines-per-s", type=float)
    words = parser.parse_args()
    rank = os.environ["RANK"]
    fault = words.meet / f"fault-{rank}"
    writer = Writer(words.meet, rank, os.environ.get("TOOLKIT_RESTART_COUNT", "0"))
    saves = None
    if os.environ["LOCAL_RANK"] == "0":
        saves = checkpoints.Writer(Path(os.environ["SAGEMAKER_BASE_DIR"]) / "checkpoints")
    while not (words.meet / "end").exists():
        if saves is not None:
            saves.write_if_due()
        if fault.exists():
            how = fault.read_text()
            fault.unlink()
            broken(how)
        count = random.choice((1, 10, 100, 1000))
        began_s = time.monotonic()
        for _ in range(count):
            writer.line()
        time.sleep(max(0.0, began_s + count / words.lines_per_s - time.monotonic()))


main()
