"""Reads names: a kernel's short name and, as a guess, its precision; whether an event communicates."""

import re

# The patterns are tried in this order. Kernels of cuBLAS, CUTLASS, cuDNN and Triton carry the type of their inputs in
# their names: s (single), h (half), bf16, tf32, i8, "s884" and "h884" for tensor cores. None of this is documented.
_PRECISIONS = (
    ("fp8", r"e4m3|e5m2|fp8|float8"),
    ("bf16", r"bf16|bfloat16|nv_bfloat"),
    ("tf32", r"tf32|s1688gemm(?!_f16)|s1688fprop"),
    ("int8", r"_i8|int8|imma|i16832"),
    ("fp16", r"fp16|f16|_half|__half|c10::half|hgemm|h\d{3,5}gemm|h884|h1688|h16816|s16816gemm_fp16|half_"),
    ("fp64", r"double|f64|dgemm|d884"),
    ("fp32", r"float|f32|sgemm|fp32|_s_|ss?gemm"),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PRECISIONS)
_COMMUNICATION = re.compile(
    r"^(nccl|gloo|mpi|ucc|hccl|rccl|c10d|horovod)|ncclDev|ncclKernel|oneccl|SendRecv", re.IGNORECASE
)
_STEP = re.compile(r"^(?:ProfilerStep#|step_|Step:)(\d+)?")
UNKNOWN = "unknown"


def guess_precision(kernel: str) -> str:
    """Return the precision that the name *kernel* suggests, "unknown" if it suggests none. It is a guess."""
    return next((name for name, pattern in _COMPILED if pattern.search(kernel)), UNKNOWN)


def communicates(name: str) -> bool:
    """Return whether an event of this *name* is a collective or a transfer between ranks."""
    return _COMMUNICATION.search(name) is not None


def step_number(annotation: str) -> int | None:
    """Return N of "ProfilerStep#N" or "step_N"; -1 for a step without a number, None if it is no step."""
    match = _STEP.match(annotation)
    return None if match is None else -1 if match[1] is None else int(match[1])


def normalize_collective(name: str) -> str:
    """Return a name that is equal on all ranks: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)" is "AllReduce"."""
    match = re.search(r"AllReduce|ReduceScatter|AllGather|Broadcast|Reduce|SendRecv|AllToAll", name)
    return match[0] if match and name.lower().startswith("nccl") else name.partition("(")[0]


def shorten_kernel_name(kernel: str) -> str:
    """Return the name of a C++ *kernel* without return type, arguments and template arguments."""
    text = kernel.removeprefix("void ")
    plain, depth = [], 0
    text = text.replace("(anonymous namespace)", "anonymous")
    for letter in text:
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif depth == 0:
            if letter == "(":
                break
            plain.append(letter)
    name = "".join(plain).strip()
    inner = re.search(r"(\w+Functor\w*|\w+_kernel_cuda\w*|CUDAFunctor\w*|BinaryFunctor)", text.partition("<")[2])
    return f"{name}<{inner[1]}>" if inner and name.endswith(("elementwise_kernel", "reduce_kernel")) else name
