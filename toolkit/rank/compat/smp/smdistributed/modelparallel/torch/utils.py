"""What scripts import of the old library's own utils."""

from toolkit.rank.modelparallel.torch.internals import get_distribution_axis as get_distribution_axis
from toolkit.rank.modelparallel.torch.internals import rmsg as rmsg
