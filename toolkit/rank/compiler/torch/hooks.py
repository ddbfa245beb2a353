"""Attaches the compiler to torch as soon as the script has imported it (toolkit/rank/compiler/arrival.py)."""

import os
import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MARK = "_toolkit_compiles"


def attach(torch: "ModuleType", settings: "dict[str, Any]") -> None:
    """Have the models that train with *torch* compiled by *settings*, once in a process."""
    if getattr(torch, MARK, False) or _is_a_worker():
        return
    setattr(torch, MARK, True)
    register_step_hook = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if register_step_hook is None:
        sys.stderr.write("[toolkit] compiler: eager: torch %s is older than 2.0\n" % torch.__version__)
        return
    from ...frameworks.torch import modules

    if not modules.can_replace_calls("nothing is compiled"):
        return
    from .controller import Controller

    # torch sets this one itself when it imports its compiler.
    controller = Controller(settings, own_cache=os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    controller.start()
    register_step_hook(controller.optimizer_stepped)


def _is_a_worker() -> bool:
    """True in a process that imports torch and does not train: torchrun itself, and inductor's compile workers."""
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", "") or ""
    words = getattr(sys, "orig_argv", [])
    if not name and "-m" in words[:-1]:  # Python imports torch, the package of the module, before it has its spec.
        name = words[words.index("-m") + 1]
    program = sys.argv[0] if sys.argv else ""
    return name.startswith(("torch.distributed.", "torch._inductor.")) or program.endswith(
        ("/torchrun", "compile_worker/__main__.py")
    )
