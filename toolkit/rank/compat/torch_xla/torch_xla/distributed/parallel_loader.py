from typing import Any

from toolkit.rank.xla.live.shim import DeviceLoader
from torch_xla import rank as _rank


class MpDeviceLoader(DeviceLoader):
    """A class, as torch_xla's is: accelerate has one below it."""

    def __init__(self, loader: Any, device: Any = None, **options: Any) -> None:
        super().__init__(loader, device or _rank.device(), _rank.mark_step)


def ParallelLoader(loader: Any, devices: Any, **options: Any) -> Any:  # noqa: N802 - torch_xla's name
    return _rank.loader(loader, devices[0])
