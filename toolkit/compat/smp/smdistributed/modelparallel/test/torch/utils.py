"""Tests of the old library's own, which scripts import."""

from toolkit.modelparallel.torch.internals import dump_model as dump_model
from toolkit.modelparallel.torch.internals import verify as verify
