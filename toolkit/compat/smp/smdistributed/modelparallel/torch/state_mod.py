"""smp.state, where the old library has it."""

from toolkit.modelparallel.torch.api import state as state
