"""smp.optimizers."""

from toolkit.rank.modelparallel.torch.optimizers import FusedLAMB as FusedLAMB
from toolkit.rank.modelparallel.torch.optimizers import FusedLamb as FusedLamb
from toolkit.rank.modelparallel.torch.optimizers import FusedNovoGrad as FusedNovoGrad
