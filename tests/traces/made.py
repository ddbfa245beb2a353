"""Small traces by hand, in the shape in which Kineto writes those of a GPU (output_json.cpp, CuptiActivity.cpp)."""

import json
from collections.abc import Iterable
from typing import Any

from toolkit.traces import chrome
from toolkit.traces.chrome import ChromeTrace

HOST, THREAD = 4711, 4712


def event(
    cat: str, name: str, ts: float, dur: float, *, pid: int = HOST, tid: int = THREAD, **args: Any
) -> dict[str, Any]:
    """Return an event of a duration; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(
    name: str,
    ts: float,
    dur: float,
    *,
    launched: float | None = None,
    stream: int = 7,
    device: int = 0,
    number: int = 0,
) -> list[dict[str, Any]]:
    """Return a kernel with its launch (by default 10 us before it) and the flow that connects them."""
    number = number or int(ts * 10) + stream
    call = ts - 10 if launched is None else launched
    args = {"device": device, "context": 1, "stream": stream, "correlation": number, "grid": [1, 1, 1]}
    return [
        event("cuda_runtime", "cudaLaunchKernel", call, 4, cbid=211, correlation=number),
        event("kernel", name, ts, dur, pid=device, tid=stream, **args),
        {"ph": "s", "id": number, "pid": HOST, "tid": THREAD, "ts": call, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": number, "pid": device, "tid": stream, "ts": ts, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    ]


def copy(name: str, ts: float, dur: float, size: int, *, device: int = 0, stream: int = 7) -> dict[str, Any]:
    """Return a copy or a memset of *size* bytes."""
    cat = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
    return event(cat, name, ts, dur, pid=device, tid=stream, device=device, stream=stream, bytes=size)


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    """Return the annotation of a step."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def document(
    events: Iterable[dict[str, Any]],
    *,
    rank: int | None = 0,
    world_size: int = 2,
    host: str = "algo-1",
    base_ns: int = 0,
) -> bytes:
    """Return a trace's JSON text."""
    distributed = (
        {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}}
    )
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84_929_347_584}]
    rest = {"schemaVersion": 1, "deviceProperties": properties, "host_name": host, "baseTimeNanoseconds": base_ns}
    name_event = {"name": "process_name", "ph": "M", "ts": 0, "pid": HOST, "tid": 0, "args": {"name": "python"}}
    return json.dumps({**rest, **distributed, "traceEvents": [name_event, *events]}).encode()


def trace(events: Iterable[dict[str, Any]], *, rank: int | None = 0, host: str = "algo-1") -> ChromeTrace:
    """Return *events* as a trace."""
    return chrome.decode(document(events, rank=rank, host=host), "made")


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def gpu_step() -> list[dict[str, Any]]:
    """Return 1,000 us: 400 GEMM (two, one beside a copy of 100), 100 add, 200 all-reduce of which 50 run beside add, 50
    of a wait for the device after them, the rest idle."""
    return [
        step(1, 0, 1000),
        event("user_annotation", "Forward", 0, 450),
        event("user_annotation", "Backward", 450, 400),
        event("cpu_op", "aten::linear", 10, 60),
        *kernel(GEMM, 100, 200),
        *kernel(GEMM, 300, 200),
        copy("Memcpy HtoD (Pinned -> Device)", 250, 100, 4_000_000, stream=20),
        copy("Memcpy HtoD (Pinned -> Device)", 500, 50, 1_000_000, stream=20),
        copy("Memset (Device)", 550, 10, 512),
        *kernel(ADD, 600, 100),
        *kernel(REDUCE, 650, 200, stream=24, launched=640),
        event("cuda_runtime", "cudaDeviceSynchronize", 800, 100),
    ]
