"""Private names of CPython. Read in 3.10 to 3.14.

Not here: what runs before anything may be imported (rank/hook), and the modules _thread and os._exit, which are
documented.
"""

import sys

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from types import FrameType, ModuleType


def is_being_imported(module: "ModuleType") -> bool:
    """Return whether *module* is still being imported; False, where Python does not tell."""
    return bool(getattr(module.__spec__, "_initializing", False))


def get_frame(thread: int) -> "FrameType | None":
    """Return the frame that *thread* runs now, None if it has ended, or where Python does not tell."""
    frames = getattr(sys, "_current_frames", None)
    frame: FrameType | None = None if frames is None else frames().get(thread)
    return frame
