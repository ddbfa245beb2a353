"""smp.nn."""

from smdistributed.modelparallel.torch.nn import huggingface as huggingface
from torch.nn import LayerNorm as FusedLayerNorm  # noqa: F401 - torch's is fused

from toolkit.modelparallel.torch.absent import refuse_in_nn as __getattr__  # noqa: F401 - called by Python
from toolkit.modelparallel.torch.tensor.language import DistributedTransformerLMHead as DistributedTransformerLMHead
from toolkit.modelparallel.torch.tensor.modules import DistributedEmbedding as DistributedEmbedding
from toolkit.modelparallel.torch.tensor.modules import DistributedLinear as DistributedLinear
from toolkit.modelparallel.torch.tensor.transformer import DistributedAttentionLayer as DistributedAttentionLayer
from toolkit.modelparallel.torch.tensor.transformer import DistributedTransformer as DistributedTransformer
from toolkit.modelparallel.torch.tensor.transformer import DistributedTransformerLayer as DistributedTransformerLayer
from toolkit.modelparallel.torch.tensor.transformer import (
    DistributedTransformerOutputLayer as DistributedTransformerOutputLayer,
)
