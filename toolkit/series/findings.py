"""output/monitor/findings.jsonl: a finding a line, appended by the monitor, read by `train` and by reports."""

import os
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.records import encode
from toolkit.series.finding import Finding as Finding

NAME = "findings.jsonl"


def append(path: Path, finding: Finding) -> None:
    """Append *finding* to the file at *path* in one write, so that a reader sees a whole line.

    Raises:
        OSError: the file cannot be written.
    """
    # O_NONBLOCK: if the script has made it a FIFO, a write must not wait for a reader.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        size = os.fstat(fd).st_size
        # An earlier writer that was killed may have left half a line, which this one must not continue.
        cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        rest = memoryview((b"\n" if cut else b"") + encode(finding) + b"\n")
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def read(path: Path) -> tuple[Finding, ...]:
    """Return the findings in the file at *path*, oldest first. No file: none. A cut line is skipped.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        content = files.read(path, files.RECORDS_BYTES)
    except FileNotFoundError:
        return ()
    return decoded(content)


def decoded(content: bytes) -> tuple[Finding, ...]:
    """Return the findings in *content*, whole lines of such a file. A line that is no finding is skipped."""
    decoder = msgspec.json.Decoder(Finding)
    findings = []
    for line in content.splitlines():
        try:
            findings.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError too.
            continue
    return tuple(findings)
