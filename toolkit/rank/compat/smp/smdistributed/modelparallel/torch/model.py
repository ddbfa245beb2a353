"""DistributedModel, where the old library has it."""

from toolkit.rank.modelparallel.torch.model import DistributedModel

__all__ = ["DistributedModel"]
