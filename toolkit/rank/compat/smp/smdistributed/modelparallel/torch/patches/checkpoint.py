"""smp.patches.checkpoint."""

from toolkit.rank.modelparallel.torch.checkpointing import checkpoint as checkpoint
from toolkit.rank.modelparallel.torch.checkpointing import checkpoint_sequential as checkpoint_sequential
