from typing import Any

from torch_xla import rank as _rank

MpDeviceLoader = _rank.loader


def ParallelLoader(loader: Any, devices: Any, **options: Any) -> Any:  # noqa: N802 - torch_xla's name
    return _rank.loader(loader, devices[0])
