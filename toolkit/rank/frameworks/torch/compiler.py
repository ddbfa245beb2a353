"""Private names of torch's compiler. Importing it takes 0.2 to 1.6 s: each function does so only if it needs it."""

import sys

import torch
import torch.utils.checkpoint

from ..private_names import find_or_report, report_missing, require_name

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def get_recomputation_stops() -> "tuple[type[BaseException], ...]":
    """Return the exceptions by which activation checkpointing ends a forward pass that it runs in the backward pass."""
    stop = getattr(torch.utils.checkpoint, "_StopRecomputationError", None)
    return () if stop is None else (stop,)


def find_graph_task() -> "Callable[[], int]":
    """Return the function that tells the number of the backward pass that this thread runs, -1 outside of any."""
    consequence = "modules under activation checkpointing may run compiled once and eagerly the other time"
    return find_or_report(torch, "_C._current_graph_task_id", consequence) or _outside


def _outside() -> int:
    return -1


def find_tracing_state() -> "Callable[[], object]":
    """Return the function that tells whether torch.jit.trace runs: None if it does not."""
    return find_or_report(torch, "_C._get_tracing_state", "a model is traced as it is compiled") or _no_state


def _no_state() -> None:
    return None


def make_traceable(module: "torch.nn.Module", call: "Callable[..., Any]") -> "Callable[..., Any]":
    """Return *call*, `_call_impl` of *module*, so that torch's compiler enters it.

    It begins with the first frame that is no code of torch.nn: the module's `forward`. An nn.Sequential has none, and
    is wrapped, as torch.compile(module) does it (OptimizedModule, torch 2.13).

    Raises:
        MissingNameError: this torch's compiler has another form.
    """
    import torch._dynamo.external_utils
    import torch._dynamo.trace_rules

    wrap = require_name(torch, "_dynamo.external_utils.wrap_inline")
    is_skipped = require_name(torch, "_dynamo.trace_rules.check")
    wrapped: Callable[..., Any] = wrap(call) if is_skipped(module.forward) else call
    return wrapped


def watch_compilations(begins: "Callable[..., None] | None", ends: "Callable[..., None]") -> None:
    """Have *begins* and *ends* called around each compilation.

    Raises:
        MissingNameError: torch calls nothing there.
    """
    import torch._dynamo.callback

    handler = require_name(torch, "_dynamo.callback.callback_handler")
    if begins is not None:
        handler.register_start_callback(begins)
    handler.register_end_callback(ends)


def leave_untraced(package: str) -> None:
    """Have torch.compile run the functions of *package* as they are, and not compile them with those that call them."""
    import torch._dynamo.trace_rules

    add = find_or_report(torch, "_dynamo.trace_rules.add", f"torch.compile compiles {package}")
    if add is not None:
        add(package)


def configure_compiler() -> None:
    """Set what a module that runs compiled in one step, and eagerly in the next one, needs of the compiler."""
    import torch._dynamo.config
    import torch._functorch.config

    graphs, guards = torch._functorch.config, torch._dynamo.config
    # A backward pass that does not compile must fail where the slot can still run the module eagerly.
    _set(graphs, "force_non_lazy_backward_lowering", True, "a backward pass that does not compile ends the script")
    # Else backward(retain_graph=True) fails. Where it is missing, no buffer is donated.
    if hasattr(graphs, "donated_buffer"):
        graphs.donated_buffer = False
    # Else a hook that the script registers on an inner module after the first compiled step is never called, and
    # one that it removes goes on.
    _set(guards, "skip_nnmodule_hook_guards", False, "hooks that the script changes later may have no effect")


def _set(config: "Any", name: str, value: bool, consequence: str) -> None:
    if hasattr(config, name):
        setattr(config, name, value)
    else:
        report_missing("torch", "%s.%s" % (config.__name__.partition(".")[2], name), consequence)


def write_graphs(folder: str) -> None:
    """Have torch write its graphs and code below *folder*, and compile all anew."""
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.config.debug_dir_root = folder
    require_name(torch, "_inductor.config.trace").enabled = True
    torch._inductor.config.force_disable_caches = True


def stop_writing_graphs() -> None:
    """Have torch write no further graphs."""
    require_name(torch, "_inductor.config.trace").enabled = False


def read_counters() -> "Any":
    """Return the compiler's counters by group and name, None if it was not imported or has none."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def read_metrics() -> "Any":
    """Return what torch notes of each compilation, the newest last; nothing if it was not imported or notes nothing."""
    read = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    return () if read is None else read()


def read_recompile_limit() -> int:
    """Return how often torch compiles one code: from then on it runs eagerly."""
    config = sys.modules.get("torch._dynamo.config")
    return int(getattr(config, "recompile_limit", 0) or getattr(config, "cache_size_limit", 8))
