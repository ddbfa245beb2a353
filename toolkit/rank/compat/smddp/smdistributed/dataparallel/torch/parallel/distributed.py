"""The module form's DistributedDataParallel."""

from toolkit.rank.dataparallel.backend import register
from toolkit.rank.dataparallel.module import parallel_class

register()
DistributedDataParallel = parallel_class()

__all__ = ["DistributedDataParallel"]
