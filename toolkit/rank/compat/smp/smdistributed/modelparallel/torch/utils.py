"""The names that scripts import from the old library's utils."""

from toolkit.rank.modelparallel.torch.internals import get_distribution_axis as get_distribution_axis
from toolkit.rank.modelparallel.torch.internals import rmsg as rmsg
