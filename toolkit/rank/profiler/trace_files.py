"""Writes traces: gzipped, each whole or not at all, and beside them the share of the run that they cover."""

import os
from _thread import get_ident

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from typing import Any

BLOCK_BYTES = 1 << 20


def pack(trace: str, target: str, unfinished: str, process: str) -> int:
    """Gzip the file *trace* to *target*, remove *trace*, and return the bytes written. *unfinished*: the event that is
    only a part of a step, "" if there is none. *process*: the name of the process, in place of its program's.

    Raises:
        OSError: it cannot be written; neither *target* nor a part of it is left.
    """
    import gzip

    part = target + ".part"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(trace, "rb") as file:
            text = file.read()
        if unfinished:
            text = text.replace(b'"%b"' % unfinished.encode(), b'"unfinished %b"' % unfinished.encode())
        text = name_process(align_steps(text), process)
        with gzip.open(part, "wb", compresslevel=1) as packed:
            for offset in range(0, len(text), BLOCK_BYTES):
                packed.write(text[offset : offset + BLOCK_BYTES])
        os.rename(part, target)
        return os.path.getsize(target)
    finally:
        for path in (trace, part):
            try:
                os.unlink(path)
            except OSError:
                pass


def name_process(text: bytes, name: str) -> bytes:
    """Return the trace *text* in which each process is called *name*: of a job's ranks all run the same program."""
    import json
    import re

    process = re.compile(rb'("name":\s*"process_name"[^{}]*"args":\s*\{\s*"name":\s*)"[^"]*"')
    return process.sub(lambda match: match[1] + json.dumps(name).encode(), text)


def align_steps(text: bytes) -> bytes:
    """Return the trace *text* with the ends of its steps moved behind the optimizer's.

    torch records the end of a step inside of Optimizer.step, some microseconds before that ends: two events that
    overlap without one being inside the other, of which Perfetto drops one.
    """
    import re

    kinds, number = rb"(ProfilerStep#|Optimizer\.step#)", rb"([0-9.]+)"
    step = re.compile(rb'"name": "%b[^"]*"[^{}]*?"ts": %b,\s*"dur": %b' % (kinds, number, number))
    matches = [(match[1], match.span(2), match.span(3)) for match in step.finditer(text)]
    spans = [(kind, _ns(text, start), _ns(text, start) + _ns(text, length)) for kind, start, length in matches]
    ends = [(begin, end) for kind, begin, end in spans if kind != b"ProfilerStep#"]
    changes = []
    for (kind, start, length), (_, begin, end) in zip(matches, spans):  # noqa: B905 - Python 3.8 has no `strict`
        if kind == b"ProfilerStep#":
            begin, end = _move_behind(begin, ends), _move_behind(end, ends)
            changes += [(start, _us(begin)), (length, _us(max(0, end - begin)))]
    pieces, done = [], 0
    for (first, last), new in sorted(changes):
        pieces += [text[done:first], new]
        done = last
    return b"".join((*pieces, text[done:]))


def _move_behind(time: int, spans: "list[tuple[int, int]]") -> int:
    return max((end for begin, end in spans if begin < time < end), default=time)


def _ns(text: bytes, span: "tuple[int, int]") -> int:
    """Return the time at *span*, in us with decimals, in ns: a float would round it."""
    microseconds, _, part = text[slice(*span)].partition(b".")
    return int(microseconds or b"0") * 1000 + int((part + b"000")[:3])


def _us(time_ns: int) -> bytes:
    return b"%d.%03d" % divmod(time_ns, 1000)


def write_json(path: str, value: "dict[str, Any]") -> None:
    """Write *value* to *path*, whole or not at all; several threads may do so at the same time.

    Raises:
        OSError: it cannot be written.
    """
    import json

    part = "%s.%d.part" % (path, get_ident())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(part, "w") as file:
        json.dump(value, file)
    os.rename(part, path)
