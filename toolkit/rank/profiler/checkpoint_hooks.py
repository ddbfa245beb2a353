"""Attaches the step timer to torch.distributed.checkpoint. For `async_save`, it measures how long the caller waits."""

import sys

from .step_timer import timer
from .torch_hooks import MARK, time_saving

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType


def attach(module: "ModuleType") -> None:
    """Attach the step timer of this process to torch.distributed.checkpoint, once."""
    step_timer = timer()
    if getattr(module, MARK, False) or not step_timer.folder:
        return
    setattr(module, MARK, True)
    inner = sys.modules.get(module.__name__ + ".state_dict_saver")
    for name in ("save", "async_save", "save_state_dict"):
        function = getattr(module, name, None)
        if function is None:
            continue
        measured = time_saving(function, step_timer)
        for holder in (module, inner):
            if getattr(holder, name, None) is function:
                setattr(holder, name, measured)
