"""Private names of torch.distributed: backends of process groups, stores, and schedules of pipelines."""

import importlib
import inspect

import torch
import torch.distributed as dist

from ..private_names import find_name, report_missing, require_name

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

# The methods of a process group that torch looks up in a Python subclass (PyProcessGroup.hpp; a test compares).
# Those that are counted, with the native backend's name for each (torch 2.13 renamed two of the group's).
COUNTED = {
    "_allgather_base": "_allgather_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "all_gather_single": "_allgather_base",
    "allgather": "allgather",
    "allreduce_coalesced": "allreduce_coalesced",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall_base",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "scatter": "scatter",
}

# The others: passed on, not counted.
PASSED = (
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "barrier",
    "recv",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "send",
)
# Those that torch 2.14 looks up under another name than its own method has in Python.
PASSED_AS = {
    "recvAnysource": "recv_anysource",
    "start_coalescing": "_start_coalescing",
    "end_coalescing": "_end_coalescing",
}


def require_backend_names() -> None:
    """Look whether torch has all private names without which there is no process group of one's own.

    Raises:
        MissingNameError: it has not.
    """
    for path in ("Backend._plugins", "ProcessGroup._register_backend", "ProcessGroup._set_default_backend"):
        require_name(dist, path)


def get_backend_creator(name: str) -> "Any":
    """Return the function that makes groups of the backend *name*, None: it is not registered."""
    plugin = dist.Backend._plugins.get(name.upper())
    return None if plugin is None else plugin.creator_fn


def require_xla_names() -> None:
    """Look whether torch has the private names without which the groups of backend "xla" are torch_xla's own.

    Raises:
        MissingNameError: it has not.
    """
    for path in ("Backend._plugins", "distributed_c10d._resolve_process_group"):
        require_name(dist, path)
    require_name(importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers")
    require_name(torch, "_C._distributed_c10d._create_work_from_future")


def replace_backend(name: str, create: "Callable[..., Any]") -> None:
    """Have *create*(store, rank, size, timeout) make the groups of the backend *name*, registered before."""
    plugins = dist.Backend._plugins
    plugins[name.upper()] = plugins[name.upper()]._replace(creator_fn=create, extended_api=False)


def replace_rendezvous(scheme: str) -> None:
    """Have ranks meet by their environment, as at "env://", if the script asks for *scheme*, registered before."""
    handlers = vars(importlib.import_module("torch.distributed.rendezvous"))["_rendezvous_handlers"]
    handlers[scheme] = lambda _url, *arguments, **options: handlers["env"]("env://", *arguments, **options)


def get_process_group(name: str) -> "Any":
    """Return the process group of the name that torch's functional collectives use."""
    return find_name(dist, "distributed_c10d._resolve_process_group")(name)


def make_finished_work(result: "Any") -> "Any":
    """Return the work of a collective that is finished, with *result*."""
    future: "torch.futures.Future[Any]" = torch.futures.Future()
    future.set_result(result)
    return find_name(torch, "_C._distributed_c10d._create_work_from_future")(future)


def add_native_backends(group: "Any", natives: "dict[str, tuple[Any, Any]]", default: "Any") -> None:
    """Register *natives* inside *group*: (torch's type, backend) by kind of device. *default*: the type that counts."""
    for device, (kind, native) in natives.items():
        group._register_backend(torch.device(device), kind, native)
    group._set_default_backend(default)


def begin_sequence(backend: "Any") -> None:
    """Have *backend* number its collectives, as torch has every backend that it makes.

    From torch 2.14 on the numbers begin by themselves, and the call warns; groups have lost it.
    """
    if hasattr(dist.ProcessGroup, "_set_sequence_number_for_group"):
        backend._set_sequence_number_for_group()


def set_timeout(options: "Any", timeout: "timedelta") -> None:
    """Set the time limit of a backend's *options*."""
    options._timeout = timeout


def exclude_from_compiling(method: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return *method* for torch.compile to call and not to trace.

    It imports torch._dynamo at the first call, not now as torch.compiler.disable does.
    """
    try:
        import torch._compile
    except ImportError:
        pass  # Then torch.compiler.disable.
    disable = find_name(torch, "_compile._disable_dynamo") or torch.compiler.disable
    untraced: Callable[..., Any] = disable(method)
    return untraced


def get_default_store() -> "Any":
    """Return the store of the default process group.

    Raises:
        MissingNameError: this torch does not give it.
    """
    return require_name(dist, "distributed_c10d._get_default_store")()


def can_run_chains() -> bool:
    """Return whether torch's pipeline stages are those that a chain's stages are made for; else a line of the log says
    what is off. They have the argument in torch 2.13 and 2.14, and not in 2.9."""
    from torch.distributed.pipelining import PipelineStage

    if "save_forward_output" in inspect.signature(PipelineStage.forward_one_chunk).parameters:
        return True
    consequence = "a model that is a chain runs without torch's schedules, in the module server"
    report_missing("torch", "pipelining.PipelineStage.forward_one_chunk(save_forward_output)", consequence)
    return False


def set_stage_count(schedule: "Any", count: int) -> None:
    """Let *schedule*, of a pipeline, order its work as if there were *count* stages."""
    if hasattr(schedule, "_num_stages"):
        schedule._num_stages = count
    else:
        report_missing("torch", type(schedule).__name__ + "._num_stages", "stages wait for each other's messages")
