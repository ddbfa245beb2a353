"""smp.patches.checkpoint."""

from toolkit.rank.modelparallel.torch.activation import checkpoint as checkpoint
from toolkit.rank.modelparallel.torch.activation import checkpoint_sequential as checkpoint_sequential
