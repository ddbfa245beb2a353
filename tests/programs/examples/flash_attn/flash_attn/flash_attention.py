"""A stand-in for flash_attn.flash_attention: FlashAttention cannot be made."""

FlashAttention = None
