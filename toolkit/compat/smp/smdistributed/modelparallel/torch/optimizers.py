"""smp.optimizers."""

from toolkit.modelparallel.torch.optimizers import FusedLAMB as FusedLAMB
from toolkit.modelparallel.torch.optimizers import FusedLamb as FusedLamb
from toolkit.modelparallel.torch.optimizers import FusedNovoGrad as FusedNovoGrad
