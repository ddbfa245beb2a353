"""smp.nn."""

from smdistributed.modelparallel.torch.nn import huggingface as huggingface
from torch.nn import LayerNorm as FusedLayerNorm  # noqa: F401 - torch's is fused

from toolkit.rank.modelparallel.torch.tensor.language import (
    DistributedTransformerLMHead as DistributedTransformerLMHead,
)
from toolkit.rank.modelparallel.torch.tensor.modules import DistributedEmbedding as DistributedEmbedding
from toolkit.rank.modelparallel.torch.tensor.modules import DistributedLinear as DistributedLinear
from toolkit.rank.modelparallel.torch.tensor.transformer import DistributedAttentionLayer as DistributedAttentionLayer
from toolkit.rank.modelparallel.torch.tensor.transformer import DistributedTransformer as DistributedTransformer
from toolkit.rank.modelparallel.torch.tensor.transformer import (
    DistributedTransformerLayer as DistributedTransformerLayer,
)
from toolkit.rank.modelparallel.torch.tensor.transformer import (
    DistributedTransformerOutputLayer as DistributedTransformerOutputLayer,
)
from toolkit.rank.modelparallel.torch.unsupported import refuse_in_nn as __getattr__  # noqa: F401 - called by Python
