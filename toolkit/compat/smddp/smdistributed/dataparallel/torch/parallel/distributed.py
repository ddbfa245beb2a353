"""The module form's DistributedDataParallel."""

from toolkit.dataparallel.backend import register
from toolkit.dataparallel.module import parallel_class

register()
DistributedDataParallel = parallel_class()

__all__ = ["DistributedDataParallel"]
