"""Chrome traces, as torch.profiler (Kineto) writes them: read into the events from which figures are computed.

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

# Categories of Kineto: of the device, and of the host.
KERNEL, MEMCPY, MEMSET = "kernel", "gpu_memcpy", "gpu_memset"
DEVICE = (KERNEL, MEMCPY, MEMSET)
OPERATOR, ANNOTATION, GPU_ANNOTATION, MEMORY = "cpu_op", "user_annotation", "gpu_user_annotation", "cpu_instant_event"
RUNTIME = ("cuda_runtime", "cuda_driver")
LARGEST_BYTES = 2 << 30  # Decoded, a trace takes some three times this much memory.


class Arguments(msgspec.Struct, frozen=True, gc=False, rename={"bytes": "Bytes", "size": "bytes"}):
    """The arguments of an event."""

    correlation: int | None = None
    """Equal for a kernel and the call that launched it."""
    stream: int | str | None = None
    """The stream on which it ran."""
    device: int | str | None = None
    """The number of the device."""
    size: int | float | None = None
    """The bytes of a copy."""
    bytes: int | None = None
    """The bytes of an allocation; negative for a release."""
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    """The kind of device of an allocation; 0 is the CPU."""
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    """The bytes that are allocated after it."""


class TraceEvent(msgspec.Struct, gc=False):
    """An event of the trace, with the format's names."""

    ph: str = ""
    """The phase: "X" has a duration, "i" is a moment."""
    cat: str = ""
    """The category."""
    name: str = ""
    """The name of the kernel, operator or annotation."""
    pid: int | str = 0
    """The process, or the device."""
    tid: int | str = 0
    """The thread, or the stream."""
    ts: float = 0.0
    """The begin, microseconds."""
    dur: float = 0.0
    """The duration, microseconds."""
    args: Arguments | None = None
    """The event's arguments."""

    @property
    def end(self) -> float:
        """The end, microseconds."""
        return self.ts + self.dur


class _Distributed(msgspec.Struct, frozen=True):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct, frozen=True):
    id: int = 0
    name: str = ""


class _File(msgspec.Struct):
    """The fields of a trace file that are read, with the file's own names."""

    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    distributed: _Distributed = msgspec.field(name="distributedInfo", default=_Distributed())
    devices: list[_Device] = msgspec.field(name="deviceProperties", default_factory=list)
    host: str = msgspec.field(name="host_name", default="")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    """The time to which the events' times are relative, since the epoch."""


class ChromeTrace(msgspec.Struct, frozen=True):
    """A trace of one rank."""

    events: tuple[TraceEvent, ...]
    """The events of the categories that figures use, in the file's order."""
    rank: int | None = None
    """The rank; None if neither the file nor its name has it."""
    world_size: int | None = None
    """The number of ranks of the job."""
    host: str = ""
    """The name of the host."""
    base_s: float = 0.0
    """The time from which the events' times count, seconds since the epoch; 0 if the file has none."""
    devices: tuple[str, ...] = ()
    """The names of the GPUs."""
    source: str = ""
    """The name of the file."""

    def of(self, *categories: str) -> list[TraceEvent]:
        """Return the events of *categories*."""
        return [event for event in self.events if event.cat in categories]


_USED_CATEGORIES = frozenset((*DEVICE, OPERATOR, ANNOTATION, GPU_ANNOTATION, MEMORY, *RUNTIME, "cuda_sync"))


def read(path: Path) -> ChromeTrace:
    """Return the trace in the file at *path*, JSON or gzip of it.

    Raises:
        UserError: it is not a trace, or it is cut off or too large.
        OSError: it cannot be read.
    """
    return decode(read_unpacked(path), str(path))


def decode(content: bytes, source: str) -> ChromeTrace:
    """Return the trace in the JSON text *content*; *source* names the file in errors.

    Raises:
        UserError: it is not a trace, or it is cut off.
    """
    import gc

    was_enabled = gc.isenabled()
    gc.disable()  # A hundred thousand new events trigger collections that free nothing and take as long as decoding.
    try:
        file = _decode_file(content, source)
    finally:
        if was_enabled:
            gc.enable()
    rank = file.distributed.rank
    if rank is None:
        rank_in_name = re.search(r"rank[-_.]?(\d+)", Path(source).name)
        rank = int(rank_in_name[1]) if rank_in_name else None
    return ChromeTrace(
        events=tuple(event for event in file.events if event.cat in _USED_CATEGORIES),
        rank=rank,
        world_size=file.distributed.world_size,
        host=file.host,
        base_s=file.base_ns / 1e9,
        devices=tuple(device.name for device in sorted(file.devices, key=lambda device: device.id)),
        source=source,
    )


def read_unpacked(path: Path) -> bytes:
    """Return the text in *path*, decompressed.

    Raises:
        UserError: it is cut off or too large.
        OSError: it cannot be read.
    """
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


def _decode_file(content: bytes, source: str) -> _File:
    try:
        if content.lstrip()[:1] == b"[":
            return _File(msgspec.json.decode(content, type=list[TraceEvent], strict=False))
        return msgspec.json.decode(content, type=_File, strict=False)
    except msgspec.ValidationError as error:
        hint = "Give a file that torch.profiler's export_chrome_trace wrote."
        raise UserError(
            f"expected a Chrome trace, found JSON of another shape: {error}", where=source, hint=hint
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        mistake = "an empty file" if not content.strip() else f"a mistake: {error}"
        raise UserError(f"expected a Chrome trace, found {mistake}", where=source, hint=_AGAIN) from None


_AGAIN = "A process that is killed while it writes leaves half a trace: trace again."
_SHORTER = "Trace fewer steps."
