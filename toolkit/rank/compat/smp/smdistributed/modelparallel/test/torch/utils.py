"""Tests of the old library's own, which scripts import."""

from toolkit.rank.modelparallel.torch.internals import dump_model as dump_model
from toolkit.rank.modelparallel.torch.internals import verify as verify
