"""smp.amp."""

from toolkit.modelparallel.torch.scaling import GradScaler as GradScaler
