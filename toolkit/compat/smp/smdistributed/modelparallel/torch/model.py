"""DistributedModel, where the old library has it."""

from toolkit.modelparallel.torch.model import DistributedModel

__all__ = ["DistributedModel"]
