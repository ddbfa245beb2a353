"""The names that scripts import as smp."""

from smdistributed.modelparallel import __version__ as __version__
from smdistributed.modelparallel.torch import amp as amp
from smdistributed.modelparallel.torch import model as model
from smdistributed.modelparallel.torch import nn as nn
from smdistributed.modelparallel.torch import optimizers as optimizers
from smdistributed.modelparallel.torch import patches as patches
from smdistributed.modelparallel.torch import state_mod as state_mod
from smdistributed.modelparallel.torch import utils as utils

from toolkit.rank.modelparallel.torch import *  # noqa: F403
from toolkit.rank.modelparallel.torch.unsupported import refuse as __getattr__  # noqa: F401 - called by Python
