"""Chrome traces, as torch.profiler (Kineto) writes them: read into the events that figures are made of.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU and, for categories and
arguments, pytorch/kineto's output_json.cpp (seen November 2026). Times are microseconds since `baseTimeNanoseconds`.
Only the fields below are decoded: 250 MB/s, where a decoder into dictionaries reads 40 MB/s.
"""

import re
import zlib
from pathlib import Path

import msgspec

from toolkit import files
from toolkit.errors import UserError

# Categories of Kineto on the device, and what the host does there.
KERNEL, MEMCPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
DEVICE = (KERNEL, MEMCPY, MEMSET)
OPERATOR, ANNOTATION, GPU_ANNOTATION, MEMORY = "cpu_op", "user_annotation", "gpu_user_annotation", "cpu_instant_event"
RUNTIME = ("cuda_runtime", "cuda_driver")
LARGEST_BYTES = 2 << 30  # Decoded, a trace takes some three times this much memory.


class Arguments(msgspec.Struct, frozen=True, gc=False, rename={"bytes": "Bytes", "size": "bytes"}):
    """What an event says of itself. `size`: of a copy; `bytes`: of an allocation, negative where it was freed."""

    correlation: int | None = None
    stream: int | str | None = None
    device: int | str | None = None
    size: int | float | None = None
    bytes: int | None = None
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)


class Event(msgspec.Struct, gc=False):
    """An event. `ph`: "X" has a duration, "i" is a moment. `ts`, `dur`: microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None

    @property
    def end(self) -> float:
        """When it ended, microseconds."""
        return self.ts + self.dur


class _Distributed(msgspec.Struct, frozen=True):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct, frozen=True):
    id: int = 0
    name: str = ""


class _File(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")
    distributed: _Distributed = msgspec.field(name="distributedInfo", default=_Distributed())
    devices: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)
    host: str = msgspec.field(name="host_name", default="")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


class Trace(msgspec.Struct, frozen=True):
    """A trace of one rank. `events`: those of categories that figures use, in the file's order.

    `rank`: None where neither the file nor its name says it. `base_s`: what times count from, seconds since the epoch,
    0 where the file does not say. `devices`: names of the GPUs.
    """

    events: tuple[Event, ...]
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    base_s: float = 0.0
    devices: tuple[str, ...] = ()
    source: str = ""

    def of(self, *categories: str) -> list[Event]:
        """Return the events of *categories*."""
        return [event for event in self.events if event.cat in categories]


_WANTED = frozenset((*DEVICE, OPERATOR, ANNOTATION, GPU_ANNOTATION, MEMORY, *RUNTIME, "cuda_sync"))


def read(path: Path) -> Trace:
    """Return the trace in the file at *path*, JSON or gzip of it.

    Raises:
        UserError: it is no trace, or broken: cut off, of another format, too large.
        OSError: it cannot be read.
    """
    return decoded(_content(path), str(path))


def decoded(content: bytes, source: str) -> Trace:
    """Return the trace in the JSON text *content*; *source* names the file in errors.

    Raises:
        UserError: it is no trace, or cut off.
    """
    import gc

    running = gc.isenabled()
    gc.disable()  # A hundred thousand new events set off collections that find nothing and take as long as decoding.
    try:
        file = _file(content, source)
    finally:
        if running:
            gc.enable()
    rank = file.distributed.rank
    if rank is None:
        named = re.search(r"rank[-_.]?(\d+)", Path(source).name)
        rank = int(named[1]) if named else None
    return Trace(
        events=tuple(event for event in file.events if event.cat in _WANTED),
        rank=rank,
        world_size=file.distributed.world_size,
        host=file.host,
        base_s=file.base_ns / 1e9,
        devices=tuple(device.name for device in sorted(file.devices, key=lambda device: device.id)),
        source=source,
    )


def _content(path: Path) -> bytes:
    """Return the text in *path*, unpacked."""
    content = files.read(path, LARGEST_BYTES)
    if content[:2] != b"\x1f\x8b":
        return content
    unpacker = zlib.decompressobj(31)
    try:
        plain = unpacker.decompress(content, LARGEST_BYTES)
    except zlib.error as error:
        raise UserError(f"expected gzip, found a mistake: {error}", where=str(path), hint=_AGAIN) from None
    if unpacker.unconsumed_tail:
        raise UserError(f"the trace is larger than {LARGEST_BYTES >> 30} GiB", where=str(path), hint=_SHORTER)
    if not unpacker.eof:
        raise UserError("the gzip data end too early: the file was cut off", where=str(path), hint=_AGAIN)
    return plain


def _file(content: bytes, source: str) -> _File:
    try:
        if content.lstrip()[:1] == b"[":
            return _File(msgspec.json.decode(content, type=list[Event], strict=False))
        return msgspec.json.decode(content, type=_File, strict=False)
    except msgspec.ValidationError as error:
        hint = "Give a file that torch.profiler's export_chrome_trace wrote."
        raise UserError(
            f"expected a Chrome trace, found JSON of another shape: {error}", where=source, hint=hint
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = "an empty file" if not content.strip() else f"a mistake: {error}"
        raise UserError(f"expected a Chrome trace, found {found}", where=source, hint=_AGAIN) from None


_AGAIN = "A process that is killed while it writes leaves half a trace: trace again."
_SHORTER = "Trace fewer steps."
