"""Attaches the step timer to torch.distributed.checkpoint. Of `async_save`, what holds up the caller is measured."""

import sys

from .step_timer import timer
from .torch_hooks import MARK, saving

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import ModuleType


def attach(module: "ModuleType") -> None:
    """Attach the step timer of this process to torch.distributed.checkpoint, once."""
    ours = timer()
    if getattr(module, MARK, False) or not ours.folder:
        return
    setattr(module, MARK, True)
    inner = sys.modules.get(module.__name__ + ".state_dict_saver")
    for name in ("save", "async_save", "save_state_dict"):
        function = getattr(module, name, None)
        if function is None:
            continue
        measured = saving(function, ours)
        for each in (module, inner):
            if getattr(each, name, None) is function:
                setattr(each, name, measured)
