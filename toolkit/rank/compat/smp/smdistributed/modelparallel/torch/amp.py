"""smp.amp."""

from toolkit.rank.modelparallel.torch.scaling import GradScaler as GradScaler
