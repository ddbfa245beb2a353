"""smp.nn.huggingface.gpt2."""

from toolkit.rank.modelparallel.torch.gpt2_block import (
    from_hugging_face as translate_hf_block_state_dict_to_smdistributed,
)
from toolkit.rank.modelparallel.torch.gpt2_block import hooks as get_hf_gpt2_transformer_layer_hooks
from toolkit.rank.modelparallel.torch.gpt2_block import to_hugging_face as translate_layer_state_dict_to_hf_gpt2_block
from toolkit.rank.modelparallel.torch.translation import names as _names

__all__ = [
    "get_hf_gpt2_transformer_layer_hooks",
    "translate_hf_block_state_dict_to_smdistributed",
    "translate_layer_state_dict_to_hf_gpt2_block",
]
globals().update(_names("gpt2"))
