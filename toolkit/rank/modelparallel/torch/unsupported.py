"""Names of the library that this one refuses, with the reason."""

from typing import NoReturn

REASONS = {
    "nn.FlashAttentionLayer": "smp.nn.DistributedAttentionLayer calls torch's scaled_dot_product_attention, which "
    "chooses flash attention itself (fused_softmax=True)",
}


def refuse_in_nn(name: str) -> NoReturn:
    """Raise AttributeError for *name* of smp.nn."""
    refuse(f"nn.{name}")


def refuse(name: str) -> NoReturn:
    """Raise AttributeError for *name*, with the reason if the library has that name."""
    reason = REASONS.get(name, "docs/modelparallel.md has the names that are there (toolkit docs modelparallel)")
    raise AttributeError(f"smdistributed.modelparallel.torch has no {name}: {reason}")
