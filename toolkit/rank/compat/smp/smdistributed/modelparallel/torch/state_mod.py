"""smp.state, where the old library has it."""

from toolkit.rank.modelparallel.torch.api import state as state
